// What is added up over calibration tokens: products of a token's rows, and the sums of the ridge regression.
#pragma once

#include <span>

#include "kernels/row_products.h"
#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// products[t] = those of rows t of a and b (tokens, n), in float64; aa is finite exactly where row t of a is, bb where
// that of b is. Cost: reads both once.
void ComputeRowProducts(const Context& context, MatrixView<const float> a, MatrixView<const float> b,
                        std::span<RowProducts> products);

// Sums of one site (docs/method.md): with Haug = [H | 1], gram (d + 1, d + 1) is Haug' W Haug, of which the upper
// triangle alone is kept, and cross (d + 1, d) is Haug' W D.
struct RidgeMatrices {
  MatrixView<double> gram, cross;
};
// += for H and D (tokens, d); W is the diagonal of `weights`, one a token and not negative, or the identity where there
// are none. Products and sums in float64. Cost: 3 d^2 FLOP a token.
void AddToRidgeSums(const Context& context, MatrixView<const float> h, MatrixView<const float> delta,
                    std::span<const double> weights, const RidgeMatrices& sums);

}  // namespace shiftrt
