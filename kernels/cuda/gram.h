// SPDX-License-Identifier: Apache-2.0
// Calibration sums (kernels/gram.h) on the device: the rows and the sums are in device memory.
#pragma once

#include "kernels/cuda/grid.h"
#include "kernels/row_products.h"

namespace shiftrt::gpu {

// H (tokens, n) and D (tokens, d) float32 dense; n and d: multiples of 8. weights (tokens), or null for the identity.
struct RidgeRows {
  const float *h = nullptr, *delta = nullptr;
  const double* weights = nullptr;
  int64_t tokens = 0, n = 0, d = 0;
};
// With Haug = [H | 1] and W = diag(weights): gram (n + 1, n + 1) += Haug' W Haug, upper triangle only; cross
// (n + 1, d) += Haug' W D. Products of float32 rows are exact in float64, and added in float64. Cost: n (n + 2 d) FLOP
// per token, on the float64 tensor cores.
struct RidgeArrays {
  double* gram = nullptr;
  double* cross = nullptr;
};
void AddToRidgeSums(Stream stream, const RidgeRows& rows, const RidgeArrays& sums);

// products[t] = the products of row t of a and row t of b (tokens, n). n: a multiple of 8. Cost: reads a and b once.
void ComputeRowProducts(Stream stream, const float* a, const float* b, int64_t tokens, int64_t n,
                        RowProducts* products);

}  // namespace shiftrt::gpu
