// SPDX-License-Identifier: Apache-2.0
// A model cut into consecutive ranges of blocks, each of which one process holds
// (docs/scale.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/plan.h"
#include "runtime/dtype.h"

namespace shiftrt {

// What one process holds of a model. The first has the embedding, and the last the final norm and the head; a tied head
// is on both.
struct ModelShare {
  int64_t begin = 0, end = 0;  // layers of the original model; begin == end: the head alone
  bool first = true, last = true;

  bool Has(int64_t layer) const { return layer >= begin && layer < end; }
  bool operator==(const ModelShare&) const = default;
};

// Cuts the model for `processes` of them, so that the largest share has as few bytes as possible of what every token
// reads: the halves of blocks that `plan` runs, and on the last process the head. Among cuts with the same largest
// share, the most even one. Adapters, norms and the embedding do not count. Removed layers belong to the process of the
// kept layer before them, those before the first to the first. Depends on nothing but its arguments. Throws UsageError
// for more processes than kept layers and one (which has the head alone), or fewer than one.
std::vector<ModelShare> CutModel(const ModelConfig& config, const DepthPlan& plan, int64_t processes);

// Bytes of the weights that a process with this share holds in type `dtype`: the halves that `plan` runs of its blocks,
// embedding, norms and head. Adapters and tensors of a plan's own are not among them.
int64_t WeightBytes(const ModelConfig& config, const DepthPlan& plan, const ModelShare& share, DType dtype);

// The weights of a model as memory has to hold them.
struct WeightMemory {
  const ModelConfig& config;
  const DepthPlan& plan;  // what is run of it
  DType dtype;
  bool mapped;  // as they lie in their file, so that the processes of a host share what several of them hold
};
// What a process has: the host that it runs on, and the bytes that weights may take there.
struct ProcessMemory {
  std::string host;
  int64_t bytes = 0;
};
// Over how few of the processes the model can be split so that every host has memory for what its processes hold; those
// of consecutive ranks are a group, and the number divides theirs. Of several numbers for one host, the lowest counts.
// Throws UsageError, which says what a host lacks, where there is no such number.
int64_t ChooseSplit(const WeightMemory& weights, const std::vector<ProcessMemory>& processes);

}  // namespace shiftrt
