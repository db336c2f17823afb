// SPDX-License-Identifier: Apache-2.0
// The totals that an adder counts besides the matrices of a site.
#pragma once

#include <span>
#include <utility>

#include "engine/collector.h"
#include "runtime/check.h"
#include "runtime/not_finite.h"

namespace shiftrt {

// The totals of a site. Store() writes them to its RidgeMatrices when the sums are completed.
class RidgeCount {
 public:
  explicit RidgeCount(const RidgeSite& site)
      : site_(site), tokens_(site.into.totals.tokens), delta_squares_(site.into.totals.delta_squares) {}

  // Adds the squares of rows of which these are the products. Throws NotFinite naming the site for rows that are not
  // finite.
  void Check(std::span<const RowProducts> products, std::span<const double> weights) {
    try {
      delta_squares_ += CheckedDeltaSquares(products, weights);
    } catch (const NotFinite& error) {
      throw NotFinite(fmt::format("calibrating layer {}: {}", site_.name, error.what()));
    }
  }
  void Add(int64_t rows, std::span<const double> weights) { tokens_ += CountedRows(rows, weights); }
  void Store() {
    site_.into.totals.tokens = tokens_;
    site_.into.totals.delta_squares = delta_squares_;
  }
  const RidgeSite& site() const { return site_; }

 private:
  RidgeSite site_;
  int64_t tokens_;
  double delta_squares_;
};

}  // namespace shiftrt
