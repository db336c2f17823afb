// SPDX-License-Identifier: Apache-2.0
// Cuts a model into consecutive ranges of blocks, each of which one process holds (docs/scale.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/plan.h"
#include "runtime/dtype.h"

namespace shiftrt {

struct Weights;

// The part of a model that one process holds. The first process has the embedding, and the last the final norm and the
// head; a tied head is on both.
struct ModelShare {
  int64_t begin = 0, end = 0;  // layers of the original model; begin == end: the head alone
  bool first = true, last = true;

  bool Has(int64_t layer) const { return layer >= begin && layer < end; }
  bool operator==(const ModelShare&) const = default;
};

// Cuts the model for `processes` processes so that the largest share has as few bytes as possible of the weights that
// every token reads: the halves of blocks that `plan` runs, and on the last process the head. Among cuts with the same
// largest share it chooses the most even one. Adapters, norms and the embedding do not count. A removed layer belongs
// to the process of the kept layer before it, or to the first process. The result depends on the arguments only. Throws
// UsageError for fewer than one process, and for more than the kept layers and one (which has the head alone).
std::vector<ModelShare> CutModel(const ModelConfig& config, const DepthPlan& plan, int64_t processes);

// The bytes of the weights that a process with this share holds in type `dtype`: the halves of its blocks that `plan`
// runs, embedding, norms and head. Adapters and tensors of a plan's own are not counted.
int64_t WeightBytes(const ModelConfig& config, const DepthPlan& plan, const ModelShare& share, DType dtype);

// The same of tensors in the types that they have.
int64_t WeightBytes(const Weights& weights, const DepthPlan& plan, const ModelShare& share);

// The weights of a model, as ChooseSplit counts their memory.
struct WeightMemory {
  const ModelConfig& config;
  const DepthPlan& plan;                            // the halves that run
  std::function<int64_t(const ModelShare&)> bytes;  // the bytes that a process with this share holds
  bool mapped;  // as in their file, so that the processes of a host share the pages that several of them hold
};
// The host that a process runs on, and the bytes that weights may take there.
struct ProcessMemory {
  std::string host;
  int64_t bytes = 0;
};
// The smallest number of processes over which the model can be split so that every host has memory for what its
// processes hold. Processes of consecutive ranks are a group, and the number divides their total. If the processes of a
// host give different numbers of bytes, the lowest counts. Throws UsageError, which says what a host lacks, if there is
// no such number.
int64_t ChooseSplit(const WeightMemory& weights, const std::vector<ProcessMemory>& processes);

}  // namespace shiftrt
