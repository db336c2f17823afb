// SPDX-License-Identifier: Apache-2.0
// The solver on the host, which uses LAPACK, and the code that both kinds of solver share.
#include "runtime/linalg/solver.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"
#include "runtime/linalg/lapack.h"
#include "runtime/linalg/large.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt::linalg {

namespace {

// Owns its values, or is a read-only view of values that the caller owns.
class HostArray : public Array {
 public:
  HostArray(int64_t rows, int64_t cols) : Array(rows, cols), values_(rows, cols), view_(values_.view()) {}
  explicit HostArray(MatrixView<const double> others)
      : Array(others.rows, others.cols),
        view_(const_cast<double*>(others.data), others.rows, others.cols, others.stride) {}
  static MatrixView<double> Of(const Array& array) { return static_cast<const HostArray&>(array).view_; }

 private:
  Matrix<double> values_;
  MatrixView<double> view_;
};

void Copy(MatrixView<const double> from, MatrixView<double> to) {
  for (int64_t i = 0; i < from.rows; ++i) std::copy_n(from.row(i), from.cols, to.row(i));
}

// LAPACK uses column-major order: it sees our rows as columns and our upper triangle as its lower one.
class HostSolver : public Solver {
 public:
  explicit HostSolver(const Context& context) : context_(context) { context_.solver = nullptr; }

  bool AvoidsEigen(int64_t n, int64_t sides) const override { return PrefersTridiagonal(n, sides); }
  ArrayPtr Make(int64_t rows, int64_t cols) override { return std::make_unique<HostArray>(rows, cols); }
  void Upload(MatrixView<const double> from, Array& to) override { linalg::Copy(from, HostArray::Of(to)); }
  void Download(const Array& from, MatrixView<double> to) override { linalg::Copy(HostArray::Of(from), to); }
  void Copy(const Array& from, Array& to) override {
    linalg::Copy(HostArray::Of(from).Rows(0, to.rows()).Cols(0, to.cols()), HostArray::Of(to));
  }
  std::vector<double> Elements(const Array& a, int64_t first, int64_t step, int64_t count) override {
    const MatrixView<const double> m = HostArray::Of(a);
    std::vector<double> elements(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = first + i * step;
      elements[i] = m(at / m.cols, at % m.cols);
    }
    return elements;
  }
  ArrayPtr Reading(MatrixView<const double> from) override { return std::make_unique<HostArray>(from); }

  void Gemm(const Operand& a, const Operand& b, const Scales& scales, Array& c) override {
    linalg::Gemm(context_, a.transposed, b.transposed, scales.alpha, HostArray::Of(a.array), HostArray::Of(b.array),
                 scales.beta, HostArray::Of(c));
  }
  void Symm(Side side, const Array& a, const Array& b, Array& c) override {
    linalg::Symm(context_, side, HostArray::Of(a), HostArray::Of(b), HostArray::Of(c));
  }
  bool CholeskySolve(Array& a, Array& b, double* rcond) override {
    return linalg::CholeskySolve(context_, HostArray::Of(a), HostArray::Of(b), rcond);
  }

  std::vector<double> Eigen(Array& a) override {
    const int n = lapack::ToInt(a.rows()), query = -1;
    Check(n <= kMostEigen, "an eigendecomposition of a side of {} on the CPU, at most {}; a fixed --lambda needs none",
          n, kMostEigen);
    std::vector<double> values(n);
    double* const matrix = HostArray::Of(a).data;
    CheckFinite(HostArray::Of(a));  // with other values the iteration might not terminate
    if (n >= kLargeSide) return EigenInBlocks(context_, HostArray::Of(a));
    double work_size = 0;
    int iwork_size = 0, info = 0;
    const lapack::Threads threads(context_.threads);
    dsyevd_("V", "L", &n, matrix, &n, values.data(), &work_size, &query, &iwork_size, &query, &info, 1, 1);
    std::vector<double> work(static_cast<size_t>(work_size));
    std::vector<int> iwork(iwork_size);
    const int lwork = static_cast<int>(work.size()), liwork = iwork_size;
    dsyevd_("V", "L", &n, matrix, &n, values.data(), work.data(), &lwork, iwork.data(), &liwork, &info, 1, 1);
    Check(info == 0, "the eigendecomposition of a {} x {} matrix did not converge", n, n);
    return values;
  }

  Tridiagonal Tridiagonalize(Array& a) override {
    if (a.rows() >= kLargeSide) return TridiagonalizeInBlocks(context_, HostArray::Of(a));
    const int n = lapack::ToInt(a.rows()), lwork = kBlock * n;
    Tridiagonal t{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
    std::vector<double> work(lwork);
    int info = 0;
    const lapack::Threads threads(context_.threads);
    dsytrd_("L", &n, HostArray::Of(a).data, &n, t.diagonal.data(), t.off_diagonal.data(), t.reflectors.data(),
            work.data(), &lwork, &info, 1);
    return t;
  }

  void Rotate(const Array& a, const Tridiagonal& t, Array& rows) override {
    RotateRows(context_, HostArray::Of(a), t, HostArray::Of(rows));
  }
  void RotateColumns(const Array& a, const Tridiagonal& t, Array& b) override {
    linalg::RotateColumns(context_, HostArray::Of(a), t, HostArray::Of(b));
  }
  std::vector<double> ShrunkSquares(const Bidiagonal& root, std::span<const Bidiagonal> shrinkages,
                                    const Array& b) override {
    return linalg::ShrunkSquares(root, shrinkages, HostArray::Of(b));
  }

  void AddToDiagonal(double value, Array& a) override {
    const MatrixView<double> m = HostArray::Of(a);
    for (int64_t i = 0; i < m.rows; ++i) m(i, i) += value;
  }
  void ScaleRows(std::span<const double> factors, Array& a) override {
    const MatrixView<double> m = HostArray::Of(a);
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j) m(i, j) *= factors[i];
  }
  std::vector<double> RowDots(const Array& a, const Array& b) override {
    const MatrixView<const double> x = HostArray::Of(a), y = HostArray::Of(b);
    std::vector<double> dots(x.rows, 0.0);
    for (int64_t i = 0; i < x.rows; ++i)
      for (int64_t j = 0; j < x.cols; ++j) dots[i] += x(i, j) * y(i, j);
    return dots;
  }

 private:
  static constexpr int kBlock = 64;  // the block size for LAPACK's workspace
  Context context_;
};

}  // namespace

ArrayPtr Solver::Uploaded(MatrixView<const double> from) {
  ArrayPtr to = Make(from.rows, from.cols);
  Upload(from, *to);
  return to;
}

Matrix<double> Solver::Downloaded(const Array& from) {
  Matrix<double> to(from.rows(), from.cols());
  Download(from, to.view());
  return to;
}

ArrayPtr Solver::Copied(const Array& from) {
  ArrayPtr to = Make(from.rows(), from.cols());
  Copy(from, *to);
  return to;
}

ArrayPtr Solver::Product(const Operand& a, const Operand& b) {
  ArrayPtr c = Make(a.transposed ? a.array.cols() : a.array.rows(), b.transposed ? b.array.rows() : b.array.cols());
  Gemm(a, b, {}, *c);
  return c;
}

std::unique_ptr<Solver> MakeHostSolver(const Context& context) { return std::make_unique<HostSolver>(context); }

Matrix<double> LeadingVectors(const Tridiagonal& t, int64_t count) {
  const int n = lapack::ToInt(std::ssize(t.diagonal)), wanted = lapack::ToInt(count), first = n - wanted + 1;
  const int lwork = 18 * n, liwork = 10 * n;
  std::vector<double> diagonal = t.diagonal, off_diagonal = t.off_diagonal, leading(n), work(lwork);
  std::vector<int> iwork(liwork), support(2 * count);
  Matrix<double> rows(count, n);
  const double unused = 0;
  int info = 0, found = 0, accurate = 1;
  dstemr_("V", "I", &n, diagonal.data(), off_diagonal.data(), &unused, &unused, &first, &n, &found, leading.data(),
          rows.data(), &n, &wanted, support.data(), &accurate, work.data(), &lwork, iwork.data(), &liwork, &info, 1, 1);
  Check(info == 0 && found == wanted, "the eigenvectors of a {} x {} matrix did not converge", n, n);
  for (int64_t i = 0, j = count - 1; i < j; ++i, --j) std::swap_ranges(rows.row(i), rows.row(i) + n, rows.row(j));
  return rows;
}

Tridiagonal FiniteTridiagonal(Solver& solver, Array& a) {
  Tridiagonal t = solver.Tridiagonalize(a);
  for (const std::vector<double>* part : {&t.diagonal, &t.off_diagonal})
    for (const double x : *part) Check(std::isfinite(x), "a {} x {} matrix is not finite", a.rows(), a.cols());
  return t;
}

LeadingEigenpairs LeadingEigen(Solver& solver, Array& a, int64_t count) {
  Check(a.rows() == a.cols() && count >= 1 && count <= a.rows(), "{} eigenvectors of a {} x {} matrix", count, a.rows(),
        a.cols());
  LeadingEigenpairs pairs{FiniteTridiagonal(solver, a), nullptr};
  pairs.vectors = solver.Uploaded(LeadingVectors(pairs.reduced, count).view());
  solver.Rotate(a, pairs.reduced, *pairs.vectors);
  return pairs;
}

// A GPU reads about 25 GB/s from the host. Even a GPU that is slow in float64 multiplies at 1 TFLOP/s or more; a few
// cores reach a tenth of that.
bool WorthMoving(double flops, double bytes) { return flops >= 16 * bytes; }

bool Moved(const Context& context, double flops, double elements, const std::function<void(Solver&)>& body) {
  if (context.device == Device::kCpu || context.solver == nullptr || !WorthMoving(flops, 8 * elements)) return false;
  try {
    body(*context.solver);
  } catch (const OutOfMemory&) {
    return false;
  }
  return true;
}

}  // namespace shiftrt::linalg
