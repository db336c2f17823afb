// SPDX-License-Identifier: Apache-2.0
#include "runtime/linalg/large.h"

#include <algorithm>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg/lapack.h"

namespace shiftrt::linalg {

namespace {

using lapack::ToInt;

constexpr int kReflectors = 64;  // a block of dormtr has so many, and its workspace is for them

thread_local Progress* reported = nullptr;

double Cube(int64_t n) { return static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n); }

// The FLOP of reflectors of n rows that are applied to one column.
double FlopsOfRotation(int64_t n) { return 2 * static_cast<double>(n) * static_cast<double>(n); }

}  // namespace

ReportsSolves::ReportsSolves(Progress& progress) : before_(std::exchange(reported, &progress)) {}
ReportsSolves::~ReportsSolves() { reported = before_; }

LargeWork::LargeWork(std::string what, double total) : what_(std::move(what)), total_(total) { Advance(0); }

void LargeWork::Advance(double done) {
  done_ += done;
  CheckInterrupted();
  if (reported != nullptr) reported->Within(what_, std::min(1.0, done_ / total_));
}

void InRanges(const std::string& what, int64_t count, double flops, const std::function<void(int64_t, int64_t)>& body) {
  constexpr double kRange = 1e11;
  const double total = flops * static_cast<double>(count);
  if (total <= kRange) return body(0, count);
  LargeWork work(what, total);
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kRange / flops));
  for (int64_t first = 0; first < count; first += step) {
    const int64_t here = std::min(step, count - first);
    body(first, here);
    work.Advance(flops * static_cast<double>(here));
  }
}

bool FactorInBlocks(const Context& context, MatrixView<double> a, int64_t block) {
  const int64_t n = a.rows;
  const int lda = ToInt(a.stride);
  LargeWork work(fmt::format("Cholesky factorization of {} x {}", n, n), Cube(n));
  for (int64_t first = 0; first < n; first += block) {
    const int64_t here = std::min(block, n - first), left = n - first - here;
    const lapack::Threads threads(context.threads);
    double* const corner = &a(first, first);
    const int side = ToInt(here);
    int info = 0;
    dpotrf_("L", &side, corner, &lda, &info, 1);  // the row-major upper triangle is the column-major lower one
    if (info != 0) return false;
    if (left > 0) {
      double* const off_diagonal = corner + here;
      cblas_dtrsm(CblasRowMajor, CblasLeft, CblasUpper, CblasTrans, CblasNonUnit, side, ToInt(left), 1.0, corner, lda,
                  off_diagonal, lda);
      cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, ToInt(left), side, -1.0, off_diagonal, lda, 1.0,
                  &a(first + here, first + here), lda);
    }
    work.Advance(Cube(n - first) - Cube(left));
  }
  return true;
}

void SolveInBlocks(const Context& context, MatrixView<const double> factor, MatrixView<double> b) {
  const int64_t n = factor.rows;
  const auto solve = [&](int64_t first, int64_t count) {
    const lapack::Threads threads(context.threads);
    for (const CBLAS_TRANSPOSE transpose : {CblasTrans, CblasNoTrans})
      cblas_dtrsm(CblasRowMajor, CblasLeft, CblasUpper, transpose, CblasNonUnit, ToInt(n), ToInt(count), 1.0,
                  factor.data, std::max(1, ToInt(factor.stride)), b.data + first, std::max(1, ToInt(b.stride)));
  };
  InRanges(fmt::format("solution of {} x {}", n, n), b.cols, FlopsOfRotation(n), solve);
}

// The loop of LAPACK's dsytrd: each panel makes `block` reflectors, and then changes the matrix after it.
Tridiagonal TridiagonalizeInBlocks(const Context& context, MatrixView<double> a, int block) {
  const int n = ToInt(a.rows);
  Tridiagonal t{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  std::vector<double> work(static_cast<size_t>(n) * std::max(block, kReflectors));
  LargeWork reduction(fmt::format("tridiagonal form of {} x {}", n, n), Cube(n));
  int first = 0;
  for (; first + 2 * block <= n; first += block) {
    const int side = n - first, left = side - block;
    const lapack::Threads threads(context.threads);
    dlatrd_("L", &side, &block, &a(first, first), &n, &t.off_diagonal[first], &t.reflectors[first], work.data(), &n, 1);
    cblas_dsyr2k(CblasColMajor, CblasLower, CblasNoTrans, left, block, -1.0, &a(first, first + block), n, &work[block],
                 n, 1.0, &a(first + block, first + block), n);
    for (int j = first; j < first + block; ++j) {  // the reflectors' leading ones go, as in dsytrd
      a(j, j + 1) = t.off_diagonal[j];
      t.diagonal[j] = a(j, j);
    }
    reduction.Advance(Cube(side) - Cube(left));
  }
  const int side = n - first, lwork = ToInt(std::ssize(work));
  int info = 0;
  const lapack::Threads threads(context.threads);
  dsytrd_("L", &side, &a(first, first), &n, &t.diagonal[first], &t.off_diagonal[first], &t.reflectors[first],
          work.data(), &lwork, &info, 1);
  return t;
}

void RotateRows(const Context& context, MatrixView<const double> a, const Tridiagonal& t, MatrixView<double> rows) {
  const int n = ToInt(a.rows);
  const auto rotate = [&](int64_t first, int64_t many) {
    const int count = ToInt(many), lwork = ToInt(int64_t{kReflectors} * std::max(n, count));
    std::vector<double> work(lwork);
    int info = 0;
    const lapack::Threads threads(context.threads);
    dormtr_("L", "L", "N", &n, &count, a.data, &n, t.reflectors.data(), rows.row(first), &n, work.data(), &lwork, &info,
            1, 1, 1);
  };
  InRanges(fmt::format("rotation of {} rows of {}", rows.rows, n), rows.rows, FlopsOfRotation(n), rotate);
}

// LAPACK sees the transpose of `columns`, which is multiplied by Q from the right.
void RotateColumns(const Context& context, MatrixView<const double> a, const Tridiagonal& t,
                   MatrixView<double> columns) {
  const int n = ToInt(a.rows), stride = ToInt(columns.stride);
  const auto rotate = [&](int64_t first, int64_t many) {
    const int count = ToInt(many), lwork = ToInt(int64_t{kReflectors} * std::max(n, count));
    std::vector<double> work(lwork);
    int info = 0;
    const lapack::Threads threads(context.threads);
    dormtr_("R", "L", "N", &count, &n, a.data, &n, t.reflectors.data(), columns.data + first, &stride, work.data(),
            &lwork, &info, 1, 1, 1);
  };
  InRanges(fmt::format("rotation of {} columns of {}", columns.cols, n), columns.cols, FlopsOfRotation(n), rotate);
}

// The three calls of LAPACK's dsyevd. The second, of which the tridiagonal form is input and output, is a whole.
std::vector<double> EigenInBlocks(const Context& context, MatrixView<double> a) {
  const int n = ToInt(a.rows), liwork = 3 + 5 * n;
  Tridiagonal t = TridiagonalizeInBlocks(context, a);
  Matrix<double> vectors(n, n);
  {
    LargeWork whole(fmt::format("eigenvectors of the tridiagonal form of {} x {}", n, n), 1);
    const int lwork = ToInt(1 + 4 * int64_t{n} + int64_t{n} * n);
    std::vector<double> work(lwork);
    std::vector<int> iwork(liwork);
    int info = 0;
    const lapack::Threads threads(context.threads);
    dstedc_("I", &n, t.diagonal.data(), t.off_diagonal.data(), vectors.data(), &n, work.data(), &lwork, iwork.data(),
            &liwork, &info, 1);
    Check(info == 0, "the eigendecomposition of a {} x {} matrix did not converge", n, n);
  }
  RotateRows(context, a, t, vectors.view());
  for (int64_t i = 0; i < n; ++i) std::copy_n(vectors.row(i), n, a.row(i));
  return t.diagonal;
}

}  // namespace shiftrt::linalg
