// SPDX-License-Identifier: Apache-2.0
// Computes the quantities of generalised cross-validation of a ridge regression from a tridiagonal form G = Q T Q' of
// its Gram matrix, without eigenvectors. With S = (I + T / lambda)^-1, the effective degrees of freedom are n - tr S.
// The part of the right sides C that G explains and lambda leaves is tr(Y' S T^-1 S Y) with Y = Q' C. Each lambda costs
// O(n) for the first and O(n) per column for the second.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/tensor.h"

namespace shiftrt::linalg {

// a = Q T Q' with a tridiagonal T (n, n), n >= 1, given by its diagonal and off-diagonal. Q is stored as reflectors in
// `a`, with their factors in `reflectors`. The last elements of `off_diagonal` and `reflectors` have no meaning.
struct Tridiagonal {
  std::vector<double> diagonal, off_diagonal, reflectors;

  int64_t size() const { return std::ssize(diagonal); }
};

// The smallest and the largest eigenvalue of T. Throws Error if the bisection fails.
std::pair<double, double> ExtremeEigenvalues(const Tridiagonal& t);
// All eigenvalues of T, ascending. Throws Error if the iteration does not converge.
std::vector<double> Eigenvalues(const Tridiagonal& t);

// A symmetric tridiagonal matrix as B D B', where B has a unit diagonal and one more diagonal.
struct Bidiagonal {
  std::vector<double> off_diagonal;  // (n): the other element of each row of B, 0 in the row that has none
  std::vector<double> inverse;       // (n): 1 / D
};
// Factorizes I + T / lambda with a lower bidiagonal B, for T positive semidefinite and lambda > 0, which may be
// infinite.
Bidiagonal Shrinkage(const Tridiagonal& t, double lambda);
// The trace of S: the sum of lambda / (w + lambda) over the eigenvalues w of T. Its computation involves no
// cancellation.
double ShrinkageTrace(const Tridiagonal& t, double lambda);
// Factorizes T itself, with an upper bidiagonal B; no value if T is not positive definite to working precision.
std::optional<Bidiagonal> FactorFromBelow(const Tridiagonal& t);

// For each of `shrinkages`, the sum over the columns y of b (n, columns) of |T^-1/2 S y|^2, a sum of squares. `root` is
// FactorFromBelow().
std::vector<double> ShrunkSquares(const Bidiagonal& root, std::span<const Bidiagonal> shrinkages,
                                  MatrixView<const double> b);

}  // namespace shiftrt::linalg
