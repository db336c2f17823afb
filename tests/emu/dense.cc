// runtime/cuda_dense.h for the emulator: LAPACK, through runtime/linalg.h, in place of the GPU's libraries.
#include <algorithm>

#include "runtime/cuda_dense.h"
#include "runtime/linalg.h"

namespace shiftrt::gpu {

namespace {

MatrixView<double> Square(double* a, int64_t n) { return {a, n, n}; }

}  // namespace

struct Dense::Impl {
  Context cpu;
};
Dense::Dense(Stream) : impl_(std::make_unique<Impl>()) {}
Dense::~Dense() = default;

void Dense::Gemm(double alpha, const DenseOperand& a, const DenseOperand& b, double beta, double* c) {
  const int64_t rows = a.transposed ? a.cols : a.rows, cols = b.transposed ? b.rows : b.cols;
  linalg::Gemm(impl_->cpu, a.transposed, b.transposed, alpha, {a.data, a.rows, a.cols}, {b.data, b.rows, b.cols}, beta,
               {c, rows, cols});
}

bool Dense::Cholesky(double* a, int64_t n) {
  return linalg::CholeskySolve(impl_->cpu, Square(a, n), {a, n, 0}, nullptr);
}

void Dense::SolveTriangular(const double* u, int64_t n, bool transposed, double* b, int64_t cols) {
  for (int64_t step = 0; step < n; ++step) {
    const int64_t i = transposed ? step : n - 1 - step;
    for (int64_t j = transposed ? 0 : i + 1; j < (transposed ? i : n); ++j) {
      const double factor = transposed ? u[j * n + i] : u[i * n + j];
      for (int64_t k = 0; k < cols; ++k) b[i * cols + k] -= factor * b[j * cols + k];
    }
    for (int64_t k = 0; k < cols; ++k) b[i * cols + k] /= u[i * n + i];
  }
}

bool Dense::Eigen(double* a, int64_t n, double* values) {
  const std::vector<double> found = linalg::SymmetricEigen(impl_->cpu, Square(a, n));
  std::copy(found.begin(), found.end(), values);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i + 1; j < n; ++j) std::swap(a[i * n + j], a[j * n + i]);
  return true;
}

}  // namespace shiftrt::gpu
