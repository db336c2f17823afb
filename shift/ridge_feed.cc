#include "shift/ridge_feed.h"

#include <vector>

#include "runtime/check.h"

namespace shiftrt {

RidgeFeed::RidgeFeed(Tally& tally, const Site& site, RidgeAccumulator& into)
    : tally_(tally),
      site_(site),
      into_(into),
      sums_(tally.MakeRidgeSums(into.matrices())),
      delta_squares_(into.DeltaSquares()),
      tokens_(into.tokens()) {}

void RidgeFeed::Add(const Rows& h, const Rows& delta, const TokenWeighting& weighting,
                    std::span<const int64_t> offsets) {
  const std::vector<RowProducts> products = tally_.Products(h, delta);
  const std::vector<double> weights = weighting.Weights(products, h, delta, offsets);
  double squares = 0;
  try {
    squares = CheckedDeltaSquares(products, weights);
  } catch (const Error& error) {
    Fail("calibrating layer {}: {}", site_.Name(), error.what());
  }
  sums_->Add(h, delta, weights);
  delta_squares_ += squares;
  tokens_ += h.count();
}

void RidgeFeed::Settle() {
  sums_->Store();
  into_.SetTotals(tokens_, delta_squares_);
}

}  // namespace shiftrt
