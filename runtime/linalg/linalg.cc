// SPDX-License-Identifier: Apache-2.0
#include "runtime/linalg/linalg.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "runtime/check.h"
#include "runtime/linalg/lapack.h"
#include "runtime/linalg/large.h"

namespace shiftrt::lapack {

void Threads::Reserve(int threads) {
  static int reserved = 0;  // under the lock
  if (threads <= reserved) return;
  // The working memory of a thread is 128 MiB or less; a new thread also needs a stack.
  constexpr size_t kThreadBytes = (size_t{128} + 8 + 4) << 20;
  const size_t bytes = kThreadBytes * static_cast<size_t>(threads - reserved);
  void* const room = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, bytes);
  openblas_set_num_threads(threads);
  // A product in which all threads take part. It is large enough to be divided among them.
  constexpr int kSide = 256;
  const std::vector<double> zeros(size_t{kSide} * kSide);
  std::vector<double> product(size_t{kSide} * kSide);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSide, kSide, kSide, 1, zeros.data(), kSide, zeros.data(),
              kSide, 0, product.data(), kSide);
  reserved = threads;
}

}  // namespace shiftrt::lapack

namespace shiftrt::linalg {

namespace {

using lapack::ToInt;

int LeadingDimension(const MatrixView<const double>& m) { return std::max(1, ToInt(m.stride)); }

double Flops(int64_t rows, int64_t cols, int64_t inner) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(inner);
}

std::string NameOfProduct(int64_t rows, int64_t inner, int64_t cols) {
  return fmt::format("product of {} x {} and {} x {}", rows, inner, inner, cols);
}

// The threads of a product on the host. One that a thread finishes in about a millisecond is not divided: the two
// products of 0.5 MFLOP of a BestBias() took 0.14 s together with 16 threads of a virtual machine.
int ThreadsOf(const Context& context, double flops) {
  constexpr double kOfOneThread = 2e7;
  return flops < kOfOneThread ? 1 : context.threads;
}

// Solver::CholeskySolve on the host, without an estimate of the condition number.
bool CholeskySolveHere(const Context& context, MatrixView<double> a, MatrixView<double> b) {
  if (a.rows >= kLargeSide) {
    if (!FactorInBlocks(context, a)) return false;
    SolveInBlocks(context, a, b);
    return true;
  }
  const lapack::Threads threads(context.threads);
  const int n = ToInt(a.rows), lda = LeadingDimension(a);
  int info = 0;
  // The row-major upper triangle is the column-major lower triangle.
  dpotrf_("L", &n, a.data, &lda, &info, 1);
  if (info != 0) return false;
  // A' A = L L' in column-major terms: with row-major U' U, X solves U' (U X) = B, by two triangular solves on rows.
  for (const CBLAS_TRANSPOSE transpose : {CblasTrans, CblasNoTrans})
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasUpper, transpose, CblasNonUnit, n, ToInt(b.cols), 1.0, a.data, lda,
                b.data, LeadingDimension(b));
  return true;
}

}  // namespace

void Gemm(const Context& context, bool transpose_a, bool transpose_b, double alpha, MatrixView<const double> a,
          MatrixView<const double> b, double beta, MatrixView<double> c) {
  const int64_t inner = transpose_a ? a.rows : a.cols;
  Check((transpose_a ? a.cols : a.rows) == c.rows && (transpose_b ? b.rows : b.cols) == c.cols &&
            (transpose_b ? b.cols : b.rows) == inner,
        "shapes of a product do not match: ({} x {}) ({} x {}) into ({} x {})", a.rows, a.cols, b.rows, b.cols, c.rows,
        c.cols);
  const auto elements = static_cast<double>(a.rows * a.cols + b.rows * b.cols + 2 * c.rows * c.cols);
  if (Moved(context, Flops(c.rows, c.cols, inner), elements, [&](Solver& solver) {
        const ArrayPtr out = solver.Make(c.rows, c.cols);
        if (beta != 0) solver.Upload(c, *out);
        solver.Gemm({*solver.Uploaded(a), transpose_a}, {*solver.Uploaded(b), transpose_b}, {alpha, beta}, *out);
        solver.Download(*out, c);
      }))
    return;
  const auto multiply = [&](int64_t first, int64_t count) {
    const MatrixView<const double> left = transpose_a ? a.Cols(first, count) : a.Rows(first, count);
    const MatrixView<double> out = c.Rows(first, count);
    const lapack::Threads threads(ThreadsOf(context, Flops(count, c.cols, inner)));
    cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
                ToInt(count), ToInt(c.cols), ToInt(inner), alpha, left.data, LeadingDimension(left), b.data,
                LeadingDimension(b), beta, out.data, LeadingDimension(out));
  };
  InRanges(NameOfProduct(c.rows, inner, c.cols), c.rows, Flops(1, c.cols, inner), multiply);
}

void Symm(const Context& context, Side side, MatrixView<const double> a, MatrixView<const double> b,
          MatrixView<double> c) {
  const bool left = side == Side::kLeft;
  Check(a.rows == a.cols && a.rows == (left ? b.rows : b.cols) && b.rows == c.rows && b.cols == c.cols,
        "shapes of a product with a symmetric matrix do not match: ({} x {}) and ({} x {}) into ({} x {})", a.rows,
        a.cols, b.rows, b.cols, c.rows, c.cols);
  const auto elements = static_cast<double>(a.rows * a.cols + 2 * b.rows * b.cols);
  if (Moved(context, Flops(b.rows, b.cols, a.rows), elements, [&](Solver& solver) {
        const ArrayPtr out = solver.Make(c.rows, c.cols);
        solver.Symm(side, *solver.Uploaded(a), *solver.Uploaded(b), *out);
        solver.Download(*out, c);
      }))
    return;
  const auto multiply = [&](int64_t first, int64_t count) {
    const MatrixView<const double> from = left ? b.Cols(first, count) : b.Rows(first, count);
    const MatrixView<double> to = left ? c.Cols(first, count) : c.Rows(first, count);
    const lapack::Threads threads(ThreadsOf(context, Flops(a.rows, a.rows, count)));
    cblas_dsymm(CblasRowMajor, left ? CblasLeft : CblasRight, CblasUpper, ToInt(to.rows), ToInt(to.cols), 1.0, a.data,
                LeadingDimension(a), from.data, LeadingDimension(from), 0.0, to.data, LeadingDimension(to));
  };
  InRanges(NameOfProduct(b.rows, a.rows, b.cols), left ? b.cols : b.rows, Flops(1, a.rows, a.rows), multiply);
}

void AddGram(const Context& context, MatrixView<const double> a, MatrixView<double> c) {
  Check(c.rows == a.cols && c.cols == a.cols, "the Gram of {} columns does not fit {} x {}", a.cols, c.rows, c.cols);
  const lapack::Threads threads(context.threads);
  cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, ToInt(a.cols), ToInt(a.rows), 1.0, a.data, LeadingDimension(a),
              1.0, c.data, LeadingDimension(c));
}

void Gram(const Context& context, MatrixView<const float> a, MatrixView<float> c) {
  Check(c.rows == a.cols && c.cols == a.cols, "the Gram of {} columns does not fit {} x {}", a.cols, c.rows, c.cols);
  const lapack::Threads threads(context.threads);
  cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, ToInt(a.cols), ToInt(a.rows), 1.0F, a.data, ToInt(a.stride), 0.0F,
              c.data, ToInt(c.stride));
}

void CheckFinite(MatrixView<const double> a) {
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = i; j < a.cols; ++j)
      Check(std::isfinite(a(i, j)), "element ({}, {}) of a {} x {} system is not finite", i, j, a.rows, a.cols);
}

// The loop works in tiles that fit the cache, because reads go along rows and writes along columns.
void SymmetrizeFromUpper(MatrixView<double> c) {
  constexpr int64_t kTile = 32;
  for (int64_t top = 0; top < c.rows; top += kTile)
    for (int64_t left = top; left < c.cols; left += kTile)
      for (int64_t j = left; j < std::min(left + kTile, c.cols); ++j)
        for (int64_t i = top; i < std::min(top + kTile, j); ++i) c(j, i) = c(i, j);
}

bool CholeskySolve(const Context& context, MatrixView<double> a, MatrixView<double> b, double* rcond) {
  Check(a.rows == a.cols && b.rows == a.rows, "a system of {} x {} with a right side of {} rows", a.rows, a.cols,
        b.rows);
  CheckFinite(a);
  const double norm = rcond != nullptr ? SymmetricNorm1(a) : 0.0;
  const auto elements = static_cast<double>(2 * a.rows * (a.rows + b.cols));
  const double flops = Flops(a.rows, a.rows, a.rows) / 6 + Flops(a.rows, a.rows, b.cols);
  bool definite = false;
  if (!Moved(context, flops, elements, [&](Solver& solver) {
        const ArrayPtr factor = solver.Uploaded(a), x = solver.Uploaded(b);
        definite = solver.CholeskySolve(*factor, *x, nullptr);
        if (!definite) return;
        solver.Download(*factor, a);
        solver.Download(*x, b);
      }))
    definite = CholeskySolveHere(context, a, b);
  if (!definite) return false;
  if (rcond != nullptr) *rcond = ReciprocalCondition(context, a, norm);
  return true;
}

double SymmetricNorm1(MatrixView<const double> a) {
  std::vector<double> sum(a.rows, 0.0);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = i; j < a.cols; ++j) {
      sum[j] += std::abs(a(i, j));
      if (j != i) sum[i] += std::abs(a(i, j));
    }
  }
  return sum.empty() ? 0.0 : *std::max_element(sum.begin(), sum.end());
}

double ReciprocalCondition(const Context& context, MatrixView<const double> factor, double norm) {
  const lapack::Threads threads(context.threads);
  const int n = ToInt(factor.rows), lda = LeadingDimension(factor);
  std::vector<double> work(3 * factor.rows);
  std::vector<int> iwork(factor.rows);
  double rcond = 0;
  int info = 0;
  dpocon_("L", &n, factor.data, &lda, &norm, &rcond, work.data(), iwork.data(), &info, 1);
  return rcond;
}

// LAPACK's column-major matrices are the transposes: a' x' = b' is solved.
double SolveFromRight(const Context& context, MatrixView<double> a, MatrixView<double> b, double least) {
  Check(a.rows == a.cols && b.cols == a.rows, "({} x {}) to be solved for a right side of ({} x {})", a.rows, a.cols,
        b.rows, b.cols);
  double norm = 0;  // the norm of a', so the largest row
  for (int64_t i = 0; i < a.rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < a.cols; ++j) {
      Check(std::isfinite(a(i, j)), "element ({}, {}) of a {} x {} system is not finite", i, j, a.rows, a.cols);
      sum += std::abs(a(i, j));
    }
    norm = std::max(norm, sum);
  }
  const lapack::Threads threads(context.threads);
  const int n = ToInt(a.rows), lda = LeadingDimension(a), rows = ToInt(b.rows), ldb = LeadingDimension(b);
  std::vector<int> pivots(a.rows), integers(a.rows);
  std::vector<double> work(4 * a.rows);
  int info = 0;
  dgetrf_(&n, &n, a.data, &lda, pivots.data(), &info);
  double rcond = 0;
  if (info == 0) dgecon_("1", &n, a.data, &lda, &norm, &rcond, work.data(), integers.data(), &info, 1);
  if (rcond >= least && rcond > 0) dgetrs_("N", &n, &rows, a.data, &lda, pivots.data(), b.data, &ldb, &info, 1);
  return std::min(rcond, 1.0);  // rounding can take the estimate for a 1 x 1 matrix just above 1
}

}  // namespace shiftrt::linalg
