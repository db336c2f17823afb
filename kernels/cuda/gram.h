// Sums of the ridge regression (shift/statistics.h) that stay on the device: products of float32 rows, exact in float64
// and added in float64.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// With Haug = [H | 1]: gram (d + 1, d + 1) += Haug' Haug, upper triangle only; cross (d + 1, d) += Haug' D.
// H and D (tokens, d) float32 dense; d: a multiple of 8. Cost: 3 d^2 FLOP a token, on the float64 matrix units.
struct RidgeSums {
  double* gram = nullptr;
  double* cross = nullptr;
};
void AddToRidgeSums(Stream stream, const float* h, const float* delta, int64_t tokens, int64_t d,
                    const RidgeSums& sums);

// squares[t] = sum of squares of row t of x (tokens, d): finite exactly where the row is.
void RowSquares(Stream stream, const float* x, int64_t tokens, int64_t d, double* squares);

}  // namespace shiftrt::gpu
