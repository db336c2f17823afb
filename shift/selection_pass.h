// SPDX-License-Identifier: Apache-2.0
// The pass over the calibration text by which layers are selected, and the work of the calibration that it does
// besides. A criterion that reads streams only, such as block influence, runs the original model over the text that the
// fits read, too. Its pass can therefore collect the sums of all candidates, of which those of the removed layers are
// then there, or keep the stream before some layers, so that the next pass or sequential fit begins at one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shift/job.h"
#include "shift/options.h"
#include "shift/sums/collect.h"
#include "shift/sums/ridge_probe.h"
#include "shift/sums/streams.h"

namespace shiftrt {

// The machine that a pass runs on.
struct PassMachine {
  int64_t memory = 0;  // bytes that sums and streams may take
  bool alone = true;   // one process with at most one GPU, and the whole model
  bool gpu = false;
  double float64_cost = 3;  // the time of a float64 operation in units of one of the model's

  static PassMachine Of(const Context& context, const Weights& weights);
  // The cost on a CPU with this instruction set, for a model whose weights have this type.
  static double Float64Cost(Isa isa, DType weights);
};

struct SelectionPass {
  int64_t first = 0, candidates = 0;  // whole blocks whose sums are collected; 0: no sums
  std::vector<int64_t> depths;        // the layers before which the stream is kept, ascending

  bool operator==(const SelectionPass&) const = default;
};

// With c candidates of which k are removed, T fitted tokens and the hidden size d:
// - Sums are collected on a CPU if adapters of whole blocks are fitted independently from them, if those of the fitted
//   text and of the held-out text, (c + k) 8 (d + 1) (2 d + 1) bytes, fit into the memory, and if the sums of the
//   blocks that stay take less time than half of a pass.
// - Otherwise, if a sequential fit towards the original stream follows on a CPU, this stream is kept, 4 T d bytes each,
//   before every layer from the first candidate on and after the last, or at equal distances before as many of them as
//   fit into half of the memory. The sequential fit then takes the original stream from there.
// - In all other cases, and where that half has no room for three, up to two streams are kept in the middle of equal
//   parts of the layers at which the first removed one can be.
// Nothing of this happens if the criterion reads more than streams, if its scores or the sums come from a file or go
// there, or on a machine that is not `alone`.
SelectionPass PlanSelectionPass(const Recipe& recipe, const Weights& weights, int64_t fit_tokens,
                                const PassMachine& machine);

// The results of such a pass for a calibration.
class SharedCalibration {
 public:
  // Selects the layers of the recipe, then what each of `others` would remove, by one pass, and collects and keeps what
  // PlanSelectionPass says for the recipe.
  std::vector<Selection> Select(const ShiftJob& job, const Recipe& recipe, const std::vector<PruneSpec>& others = {});

  // The sums of the fitted text for these sites, if they were collected: none of the held-out text.
  std::optional<CalibrationSums> TakeSums(const std::vector<Site>& sites);
  // The streams of the fitted text before `layer` or before an earlier block, if they were kept, and the later ones.
  std::optional<StartStreams> TakeStreams(int64_t layer);

 private:
  CalibrationSums sums_;
  std::optional<StreamProbe> streams_;
};

}  // namespace shiftrt
