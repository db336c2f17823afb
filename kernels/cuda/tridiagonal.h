// SPDX-License-Identifier: Apache-2.0
// Generalised cross-validation from a tridiagonal form (runtime/linalg/tridiagonal.h), on float64 columns in device
// memory. Every thread sweeps down and up one column, because each row depends on the one before it.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// The addresses on the device of one linalg::Bidiagonal, or of several, one after another.
struct DeviceBidiagonal {
  const double *off_diagonal = nullptr, *inverse = nullptr;
};

// For each of `count` factorizations S of size n, and with T = `root`, the sums over columns y of b (n, columns) of
// |T^-1/2 S y|^2: sums[s * Blocks(columns, kColumnsPerBlock) + i] of columns [i, i + 1) * kColumnsPerBlock.
// scratch: count * n * columns doubles. Cost per factorization: 9 n * columns FLOP; reads b once, writes and reads the
// scratch once.
inline constexpr int kColumnsPerBlock = 32;
struct ShrunkSquaresCall {
  DeviceBidiagonal root, shrinkages;
  int64_t count = 0;
  const double* b = nullptr;
  int64_t n = 0, columns = 0;
  double *scratch = nullptr, *sums = nullptr;
};
void ComputeShrunkSquares(Stream stream, const ShrunkSquaresCall& call);

// Adds `value` to the diagonal of a (n, n).
void AddToDiagonal(Stream stream, double value, int64_t n, double* a);

}  // namespace shiftrt::gpu
