// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/ridge_adder.h"

#include "runtime/check.h"

namespace shiftrt {

RidgeAdder::RidgeAdder(Tally& tally, const Site& site, RidgeSums& into)
    : site_(site),
      into_(into),
      sums_(tally.MakeRidgeSums(into.matrices())),
      delta_squares_(into.DeltaSquares()),
      tokens_(into.tokens()) {
  for (int64_t i = 0; i < tally.devices(); ++i) pending_.push_back(tally.MakeProducts());
}

void RidgeAdder::Add(const Tokens& tokens, const TokenWeighting& weighting, std::span<const int64_t> offsets) {
  const auto& [inputs, stream, delta] = tokens;
  PendingProducts& products = *pending_[turn_];
  turn_ = (turn_ + 1) % pending_.size();
  Count(products.Take(), {});
  products.Start(stream, delta);
  tokens_ += stream.count();
  if (weighting.uniform()) return sums_->Add(inputs, delta, {});
  const std::vector<RowProducts> now = products.Take();
  const std::vector<double> weights = weighting.Weights(now, stream, delta, offsets);
  Count(now, weights);
  sums_->Add(inputs, delta, weights);
}

void RidgeAdder::Count(std::span<const RowProducts> products, std::span<const double> weights) {
  try {
    delta_squares_ += CheckedDeltaSquares(products, weights);
  } catch (const Error& error) {
    Fail("calibrating layer {}: {}", site_.Name(), error.what());
  }
}

void RidgeAdder::Settle() {
  for (size_t i = 0; i < pending_.size(); ++i) Count(pending_[(turn_ + i) % pending_.size()]->Take(), {});
  sums_->Store();
  into_.SetTotals(tokens_, delta_squares_);
}

}  // namespace shiftrt
