// SPDX-License-Identifier: Apache-2.0
// Float64 linear algebra on matrices in device memory. dense.cc uses cuBLAS and cuSOLVER; kernels/emulated/dense.cc
// uses LAPACK instead.
#pragma once

#include <memory>

#include "runtime/cuda/cuda.h"
#include "runtime/linalg/solver.h"

namespace shiftrt::gpu {

// A dense row-major matrix; with `transposed`, its transpose is the operand. rows and cols are those stored.
struct DenseOperand {
  const double* data = nullptr;
  int64_t rows = 0, cols = 0;
  bool transposed = false;
};

// Owns the handles of the libraries. Use from one thread.
class Dense {
 public:
  // Loads the libraries. Throws Error naming a library that is not installed.
  explicit Dense(Stream stream);
  ~Dense();
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  // c = alpha a b + beta c.
  void Gemm(double alpha, const DenseOperand& a, const DenseOperand& b, double beta, double* c);
  // c = a b (left), or b a (right). a is symmetric and read in its upper triangle; b and c are (rows, cols).
  void Symm(linalg::Side side, const double* a, const double* b, int64_t rows, int64_t cols, double* c);
  // to (rows, cols) = diag(factors) from. `to` must not overlap `from`.
  void ScaleRows(const double* factors, const double* from, int64_t rows, int64_t cols, double* to);
  // dots (rows): the dot product of each row of a (rows, cols) with the same row of b.
  void RowDots(const double* a, const double* b, int64_t rows, int64_t cols, double* dots);
  // The upper triangle of symmetric a (n, n) becomes U with a = U' U. False if a is not positive definite.
  bool Cholesky(double* a, int64_t n);
  // b (n, cols) = U^-1 b, or U'^-1 b.
  void SolveTriangular(const double* u, int64_t n, bool transposed, double* b, int64_t cols);
  // Eigenvalues (ascending) of symmetric a (n, n), read in its upper triangle; eigenvector j goes to row j of a.
  // False if the iteration does not converge.
  bool Eigen(double* a, int64_t n, double* values);
  // a = Q T Q' for symmetric a (n, n), read in its upper triangle. `diagonal` (n) and `off_diagonal` (n - 1)
  // become T; a and `reflectors` (n) become Q. n < 2^31.
  void Tridiagonalize(double* a, int64_t n, double* diagonal, double* off_diagonal, double* reflectors);
  // rows (count, n) = rows Q', with a and `reflectors` as Tridiagonalize leaves them.
  void Rotate(double* a, int64_t n, double* reflectors, double* rows, int64_t count);
  // b (n, columns) = Q' b.
  void RotateColumns(double* a, int64_t n, double* reflectors, double* b, int64_t columns);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt::gpu
