// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/token_weights.h"

#include <algorithm>
#include <cmath>

namespace shiftrt {

namespace {

constexpr double kMassive = 1000;          // times the median
constexpr double kSquareRounding = 1e-13;  // error of a square that is a sum of three terms, relative to them

// True if the largest of `magnitudes`, which are reordered, is massive.
bool Massive(std::vector<float>& magnitudes) {
  const float largest = *std::max_element(magnitudes.begin(), magnitudes.end());
  const auto middle = magnitudes.begin() + static_cast<int64_t>(magnitudes.size()) / 2;
  std::nth_element(magnitudes.begin(), middle, magnitudes.end());
  return largest > kMassive * *middle;
}

// Finds the tokens that are massive before or after the block.
std::vector<bool> MassiveTokens(MatrixView<const float> h, MatrixView<const float> delta) {
  std::vector<bool> massive(h.rows);
  std::vector<float> before(h.cols), after(h.cols);
  for (int64_t t = 0; t < h.rows; ++t) {
    for (int64_t j = 0; j < h.cols; ++j) {
      before[j] = std::abs(h(t, j));
      after[j] = static_cast<float>(std::abs(static_cast<double>(h(t, j)) + delta(t, j)));
    }
    massive[t] = Massive(before) || Massive(after);
  }
  return massive;
}

}  // namespace

RowWeights RowWeightsOf(const TokenWeights& rule, const SiteRows& rows, const Batch& batch) {
  if (rule.uniform()) return nullptr;
  return [&rule, h = rows.stream, delta = rows.delta, &batch](std::span<const RowProducts> products) {
    return WeightsOfRows(rule, products, h, delta, batch);
  };
}

std::vector<double> WeightsOfRows(const TokenWeights& rule, std::span<const RowProducts> products, const Rows& h,
                                  const Rows& delta, const Batch& batch) {
  if (rule.uniform()) return {};
  std::vector<double> weights(products.size(), 1.0);
  for (size_t t = 0; rule.norm && t < weights.size(); ++t) {
    const RowProducts& row = products[t];
    const double squares = row.aa + 2 * row.dot + row.bb;
    // A token that leaves nothing has no size to be relative to, and nothing to fit.
    weights[t] = squares > kSquareRounding * (row.aa + row.bb) ? static_cast<double>(h.hidden()) / squares : 0.0;
  }
  if (rule.massive != 1) {
    const HostRows before = h.ToHost(), added = delta.ToHost();
    const std::vector<bool> at = MassiveTokens(before.view(), added.view());
    for (size_t t = 0; t < weights.size(); ++t)
      if (at[t]) weights[t] *= rule.massive;
  }
  for (int64_t begin : batch.offsets)
    if (begin < h.count()) weights[begin] *= rule.first;
  return weights;
}

}  // namespace shiftrt
