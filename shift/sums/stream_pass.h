// What criteria read off one pass of the original model over the calibration text.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/decoder.h"
#include "runtime/progress.h"
#include "shift/sums/statistics.h"

namespace shiftrt {

// What is wanted of the pass; nothing where empty.
struct StreamWants {
  std::set<int64_t> windows;           // numbers of consecutive blocks whose influence is measured
  std::set<int64_t> correction_ranks;  // ranks of the adapters fitted in place of every block

  bool empty() const { return windows.empty() && correction_ranks.empty(); }
};

// An adapter in a block's place, and what it leaves: sum of squares of D - H A_r - b over the calibration tokens.
struct Correctable {
  std::shared_ptr<const Lra> lra;
  double residual = 0;
};

struct StreamFindings {
  std::map<int64_t, InfluenceStatistics> windows;           // by window: a number a first block, layers - window + 1
  std::map<int64_t, std::vector<Correctable>> correctable;  // by rank: one a layer
};

// Adapters are reduced-rank regressions with lambda by generalised cross-validation. Their accumulators take
// (2 d^2 + 3 d) x 8 bytes a layer; where memory has no room for those of all layers (runtime/host_memory.h; or what a
// GPU has left), they are done in groups, a pass each. The stream of the longest window's blocks is held for one batch.
StreamFindings PassStream(const Context& context, std::shared_ptr<const Weights> weights,
                          const std::vector<Batch>& batches, const StreamWants& wants, Progress& progress);

}  // namespace shiftrt
