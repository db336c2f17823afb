// SPDX-License-Identifier: Apache-2.0
// Factorizations of large float64 matrices on the host, in blocks: between two blocks an interruption takes effect and
// the progress is reported. Each block is a call of BLAS or LAPACK on all threads of the context. Matrices below
// kLargeSide go to LAPACK in one call, because they are solved within seconds and their bits are tested.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/context.h"
#include "runtime/linalg/tridiagonal.h"
#include "runtime/progress.h"
#include "runtime/tensor.h"

namespace shiftrt::linalg {

// The least side of a matrix that is processed in blocks.
inline constexpr int64_t kLargeSide = 2048;

// True if the tridiagonal form of a symmetric matrix (n, n) and the rotation of so many right sides take less time on
// the host than its eigenvectors: it costs two rotations of the right sides and a Cholesky factorization more.
constexpr bool PrefersTridiagonal(int64_t n, int64_t sides) { return n >= kLargeSide && 3 * sides <= n; }

// While one lives, large computations of its thread on the host are reported to `progress` (Progress::Within).
class ReportsSolves {
 public:
  explicit ReportsSolves(Progress& progress);
  ~ReportsSolves();
  ReportsSolves(const ReportsSolves&) = delete;
  ReportsSolves& operator=(const ReportsSolves&) = delete;

 private:
  Progress* before_;
};

// A large computation that this thread does now. Both functions throw Interrupted after an interruption, and what the
// progress of a ReportsSolves throws.
class LargeWork {
 public:
  // `what` names the work for people; `total` is its size in a unit of the caller's.
  LargeWork(std::string what, double total);
  // More of it is done.
  void Advance(double done);

 private:
  std::string what_;
  double total_, done_ = 0;
};

// Calls body(first, count) for ranges that cover 0 to `count`, and reports them as `what`. A range has as many items of
// `flops` FLOP each as a few cores compute within seconds. Work that is not large is one range and is not reported.
void InRanges(const std::string& what, int64_t count, double flops, const std::function<void(int64_t, int64_t)>& body);

// The Cholesky factor U of a = U' U into the upper triangle of `a`, of which the upper triangle is read. False if `a`
// is not positive definite to working precision. `block` is the number of rows between two reports.
bool FactorInBlocks(const Context& context, MatrixView<double> a, int64_t block = 256);
// Solves a x = b with the factor U of FactorInBlocks() in `factor`; b becomes x.
void SolveInBlocks(const Context& context, MatrixView<const double> factor, MatrixView<double> b);
// Solver::Tridiagonalize() of the contiguous square `a`. `block` is the number of columns between two reports.
Tridiagonal TridiagonalizeInBlocks(const Context& context, MatrixView<double> a, int block = 32);
// Solver::Rotate() and Solver::RotateColumns() of contiguous matrices; `a` and `t` come from a tridiagonalization.
void RotateRows(const Context& context, MatrixView<const double> a, const Tridiagonal& t, MatrixView<double> rows);
void RotateColumns(const Context& context, MatrixView<const double> a, const Tridiagonal& t,
                   MatrixView<double> columns);
// Solver::Eigen() of the contiguous square `a` from its tridiagonal form.
std::vector<double> EigenInBlocks(const Context& context, MatrixView<double> a);

}  // namespace shiftrt::linalg
