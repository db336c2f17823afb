// SPDX-License-Identifier: Apache-2.0
// runtime/cuda/dense.h on the emulator: the solver on the host replaces the GPU libraries.
#include "runtime/cuda/dense.h"

#include <algorithm>

#include "runtime/linalg/linalg.h"

namespace shiftrt::gpu {

struct Dense::Impl {
  using Body = std::function<void(linalg::Array&)>;

  // Applies `body` to a copy of a device matrix on the host.
  void Apply(double* a, int64_t rows, int64_t cols, const Body& body) const {
    const MatrixView<double> view(a, rows, cols);
    const linalg::ArrayPtr copy = host->Uploaded(view);
    body(*copy);
    host->Download(*copy, view);
  }

  Context cpu;
  std::unique_ptr<linalg::Solver> host = linalg::MakeHostSolver(cpu);
};
Dense::Dense(Stream) : impl_(std::make_unique<Impl>()) {}
Dense::~Dense() = default;

void Dense::Gemm(double alpha, const DenseOperand& a, const DenseOperand& b, double beta, double* c) {
  const int64_t rows = a.transposed ? a.cols : a.rows, cols = b.transposed ? b.rows : b.cols;
  linalg::Gemm(impl_->cpu, a.transposed, b.transposed, alpha, {a.data, a.rows, a.cols}, {b.data, b.rows, b.cols}, beta,
               {c, rows, cols});
}

void Dense::Symm(linalg::Side side, const double* a, const double* b, int64_t rows, int64_t cols, double* c) {
  const int64_t n = side == linalg::Side::kLeft ? rows : cols;
  linalg::Symm(impl_->cpu, side, {a, n, n}, {b, rows, cols}, {c, rows, cols});
}

void Dense::ScaleRows(const double* factors, const double* from, int64_t rows, int64_t cols, double* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) to[i * cols + j] = factors[i] * from[i * cols + j];
}

void Dense::RowDots(const double* a, const double* b, int64_t rows, int64_t cols, double* dots) {
  std::fill_n(dots, rows, 0.0);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) dots[i] += a[i * cols + j] * b[i * cols + j];
}

bool Dense::Cholesky(double* a, int64_t n) { return linalg::CholeskySolve(impl_->cpu, {a, n, n}, {a, n, 0}, nullptr); }

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
  impl_->Apply(a, n, n, [&](linalg::Array& there) {
    const std::vector<double> found = impl_->host->Eigen(there);
    std::copy(found.begin(), found.end(), values);
  });
  return true;
}

void Dense::Tridiagonalize(double* a, int64_t n, double* diagonal, double* off_diagonal, double* reflectors) {
  impl_->Apply(a, n, n, [&](linalg::Array& there) {
    const linalg::Tridiagonal t = impl_->host->Tridiagonalize(there);
    std::copy_n(t.diagonal.begin(), n, diagonal);
    std::copy_n(t.off_diagonal.begin(), n - 1, off_diagonal);
    std::copy_n(t.reflectors.begin(), n - 1, reflectors);
  });
}

void Dense::Rotate(double* a, int64_t n, double* reflectors, double* rows, int64_t count) {
  const linalg::ArrayPtr q = impl_->host->Uploaded({a, n, n});
  impl_->Apply(rows, count, n, [&](linalg::Array& there) {
    impl_->host->Rotate(*q, {{}, {}, {reflectors, reflectors + n}}, there);
  });
}

void Dense::RotateColumns(double* a, int64_t n, double* reflectors, double* b, int64_t columns) {
  const linalg::ArrayPtr q = impl_->host->Uploaded({a, n, n});
  impl_->Apply(b, n, columns, [&](linalg::Array& there) {
    impl_->host->RotateColumns(*q, {{}, {}, {reflectors, reflectors + n}}, there);
  });
}

}  // namespace shiftrt::gpu
