// SPDX-License-Identifier: Apache-2.0
// Sums over calibration tokens: the products of a token's rows, and the sums of a ridge regression.
#pragma once

#include <span>

#include "kernels/row_products.h"
#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// products[t] = the products of row t of a and row t of b (tokens, n), in float64. aa is finite exactly if row t of a
// is finite, and bb if row t of b is. Cost: reads a and b once.
void ComputeRowProducts(const Context& context, MatrixView<const float> a, MatrixView<const float> b,
                        std::span<RowProducts> products);

// The sums of one site (docs/dev/method.md). With Haug = [H | 1], gram (n + 1, n + 1) is Haug' W Haug, of which only
// the upper triangle is computed, and cross (n + 1, d) is Haug' W D.
struct RidgeSumsView {
  MatrixView<double> gram, cross;
};
// Adds the tokens of H (tokens, n) and D (tokens, d). W is the diagonal matrix of `weights`, one per token and not
// negative, or the identity if there are none. Products and sums are in float64. Cost: n (n + 2 d) FLOP per token.
void AddToRidgeSums(const Context& context, MatrixView<const float> h, MatrixView<const float> delta,
                    std::span<const double> weights, const RidgeSumsView& sums);

}  // namespace shiftrt
