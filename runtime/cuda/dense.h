// Float64 matrices in device memory through cuBLAS and cuSOLVER: cuda_dense.cc; kernels/emulated/dense.cc puts LAPACK
// in their place.
#pragma once

#include <memory>

#include "runtime/cuda/cuda.h"
#include "runtime/linalg/solver.h"

namespace shiftrt::gpu {

// Row-major and dense, as stored; used as its transpose where it says so.
struct DenseOperand {
  const double* data = nullptr;
  int64_t rows = 0, cols = 0;
  bool transposed = false;
};

// The libraries' handles. Use from one thread.
class Dense {
 public:
  // Loads the libraries. Throws Error naming one that is not installed.
  explicit Dense(Stream stream);
  ~Dense();
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  // c = alpha a b + beta c.
  void Gemm(double alpha, const DenseOperand& a, const DenseOperand& b, double beta, double* c);
  // c = a b (left), or b a, with symmetric a, upper triangle read; b and c (rows, cols).
  void Symm(linalg::Side side, const double* a, const double* b, int64_t rows, int64_t cols, double* c);
  // to (rows, cols) = diag(factors) from; not in place.
  void ScaleRows(const double* factors, const double* from, int64_t rows, int64_t cols, double* to);
  // squares (rows): of each row of a (rows, cols).
  void RowSquares(const double* a, int64_t rows, int64_t cols, double* squares);
  // The upper triangle of symmetric a (n, n) becomes U, a = U' U. False where a is not positive definite.
  bool Cholesky(double* a, int64_t n);
  // b (n, cols) = U^-1 b, or U'^-1 b.
  void SolveTriangular(const double* u, int64_t n, bool transposed, double* b, int64_t cols);
  // Of symmetric a (n, n), upper triangle read: eigenvalues ascending, eigenvector j in row j of a. False where the
  // iteration does not converge.
  bool Eigen(double* a, int64_t n, double* values);
  // Of symmetric a (n, n), upper triangle read: a = Q T Q', T's diagonal (n) and what stands beside it (n - 1); a and
  // `reflectors` (n) become Q. Sides below 2^31.
  void Tridiagonalize(double* a, int64_t n, double* diagonal, double* beside, double* reflectors);
  // rows (count, n) = rows Q', of what Tridiagonalize left.
  void Rotate(double* a, int64_t n, double* reflectors, double* rows, int64_t count);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt::gpu
