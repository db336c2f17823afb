// From tapped rows to ridge accumulators.
#pragma once

#include <memory>
#include <span>

#include "models/tally.h"
#include "shift/sites.h"
#include "shift/statistics.h"
#include "shift/token_weights.h"

namespace shiftrt {

// Adds rows to an accumulator on the device that has them.
class RidgeFeed {
 public:
  // `into` lasts longer than this, and nobody else changes it meanwhile. Throws OutOfMemory where the device has no
  // room for its sums.
  RidgeFeed(Tally& tally, const Site& site, RidgeAccumulator& into);
  // As RidgeAccumulator::Add, with the weights of `weighting`; `offsets` are those of the batch. Throws Error naming
  // site and row for NaN or infinity.
  void Add(const Rows& h, const Rows& delta, const TokenWeighting& weighting, std::span<const int64_t> offsets);
  // Until then the accumulator does not count on what was added: if anything fails, it is as it was on a GPU, and of no
  // use on a CPU.
  void Settle();

 private:
  Tally& tally_;
  Site site_;
  RidgeAccumulator& into_;
  std::unique_ptr<RidgeSums> sums_;
  double delta_squares_;
  int64_t tokens_;
};

}  // namespace shiftrt
