#include "runtime/linalg.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/check.h"

extern "C" {
// LAPACK's own Fortran interface; the trailing arguments are the lengths of the character ones.
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info, size_t);
void dpocon_(const char* uplo, const int* n, const double* a, const int* lda, const double* anorm, double* rcond,
             double* work, int* iwork, int* info, size_t);
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t, size_t);
void dsytrd_(const char* uplo, const int* n, double* a, const int* lda, double* d, double* e, double* tau, double* work,
             const int* lwork, int* info, size_t);
void dsterf_(const int* n, double* d, double* e, int* info);
void dstemr_(const char* jobz, const char* range, const int* n, double* d, double* e, const double* vl,
             const double* vu, const int* il, const int* iu, int* m, double* w, double* z, const int* ldz,
             const int* nzc, int* isuppz, int* tryrac, double* work, const int* lwork, int* iwork, const int* liwork,
             int* info, size_t, size_t);
void dormtr_(const char* side, const char* uplo, const char* trans, const int* m, const int* n, const double* a,
             const int* lda, const double* tau, double* c, const int* ldc, double* work, const int* lwork, int* info,
             size_t, size_t, size_t);
}

namespace shiftrt::linalg {

namespace {

int ToInt(int64_t value) {
  Check(value <= INT32_MAX, "a matrix side of {} is beyond what LAPACK's 32-bit interface takes", value);
  return static_cast<int>(value);
}

int LeadingDimension(const MatrixView<const double>& m) { return std::max(1, ToInt(m.stride)); }

// Row-major a' is column-major a: transposes in place, so that LAPACK's columns become our columns.
void TransposeInPlace(MatrixView<double> a) {
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = i + 1; j < a.cols; ++j) std::swap(a(i, j), a(j, i));
}

void CheckFinite(MatrixView<const double> a) {
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = i; j < a.cols; ++j)
      Check(std::isfinite(a(i, j)), "element ({}, {}) of a {} x {} system is not finite", i, j, a.rows, a.cols);
}

// Has the context's solver do a problem of so much work, if there is one and the problem is worth the way. False where
// it is left to be done here, be it because that device's memory is full of other things.
template <typename Body>
bool Moved(const Context& context, double flops, double elements, const Body& body) {
  if (context.device == Device::kCpu || context.solver == nullptr || !WorthMoving(flops, 8 * elements)) return false;
  try {
    body(*context.solver);
  } catch (const OutOfMemory&) {
    return false;
  }
  return true;
}

double Cube(int64_t n) { return std::pow(static_cast<double>(n), 3); }

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

// Of a matrix whose Cholesky factor is in the upper triangle of `a`, and whose 1-norm is `norm`.
double ReciprocalCondition(MatrixView<const double> a, double norm) {
  const int n = ToInt(a.rows), lda = LeadingDimension(a);
  std::vector<double> work(3 * a.rows);
  std::vector<int> iwork(a.rows);
  double rcond = 0;
  int info = 0;
  dpocon_("L", &n, a.data, &lda, &norm, &rcond, work.data(), iwork.data(), &info, 1);
  return rcond;
}

// As Solver::CholeskySolve.
bool CholeskySolveHere(MatrixView<double> a, MatrixView<double> b) {
  const int n = ToInt(a.rows), lda = LeadingDimension(a);
  int info = 0;
  // Row-major upper is column-major lower.
  dpotrf_("L", &n, a.data, &lda, &info, 1);
  if (info != 0) return false;
  // A' A = L L' in column-major terms: with row-major U' U, X solves U' (U X) = B, by two triangular solves on rows.
  for (const CBLAS_TRANSPOSE transpose : {CblasTrans, CblasNoTrans})
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasUpper, transpose, CblasNonUnit, n, ToInt(b.cols), 1.0, a.data, lda,
                b.data, LeadingDimension(b));
  return true;
}

// As Solver::SymmetricEigen.
bool SymmetricEigenHere(MatrixView<double> a, std::span<double> values) {
  const int n = ToInt(a.rows), lda = LeadingDimension(a), query = -1;
  double work_size = 0;
  int iwork_size = 0, info = 0;
  dsyevd_("V", "L", &n, a.data, &lda, values.data(), &work_size, &query, &iwork_size, &query, &info, 1, 1);
  std::vector<double> work(static_cast<size_t>(work_size));
  std::vector<int> iwork(iwork_size);
  const int lwork = static_cast<int>(work.size()), liwork = iwork_size;
  dsyevd_("V", "L", &n, a.data, &lda, values.data(), work.data(), &lwork, iwork.data(), &liwork, &info, 1, 1);
  return info == 0;
}

// All of them by the context's solver, as Moved() says.
bool EigenMoved(const Context& context, MatrixView<double> a, std::span<double> values) {
  bool converged = false;
  const bool moved = Moved(context, 9 * Cube(a.rows), 2 * static_cast<double>(a.rows * a.rows),
                           [&](Solver& solver) { converged = solver.SymmetricEigen(a, values); });
  Check(!moved || converged, "the eigendecomposition of a {} x {} matrix did not converge", a.rows, a.cols);
  return moved;
}

}  // namespace

// A GPU reads some 25 GB/s from the host and multiplies at 1 TFLOP/s or more, a slow one for float64; a few cores do a
// tenth of that.
bool WorthMoving(double flops, double bytes) { return flops >= 16 * bytes; }

void Gemm(const Context& context, bool transpose_a, bool transpose_b, double alpha, MatrixView<const double> a,
          MatrixView<const double> b, double beta, MatrixView<double> c) {
  const int64_t inner = transpose_a ? a.rows : a.cols;
  Check((transpose_a ? a.cols : a.rows) == c.rows && (transpose_b ? b.rows : b.cols) == c.cols &&
            (transpose_b ? b.cols : b.rows) == inner,
        "shapes of a product do not match: ({} x {}) ({} x {}) into ({} x {})", a.rows, a.cols, b.rows, b.cols, c.rows,
        c.cols);
  const auto elements = static_cast<double>(a.rows * a.cols + b.rows * b.cols + 2 * c.rows * c.cols);
  if (Moved(context, 2.0 * static_cast<double>(c.rows * c.cols * inner), elements, [&](Solver& solver) {
        solver.Gemm({a, transpose_a}, {b, transpose_b}, {alpha, beta}, c);
      }))
    return;
  openblas_set_num_threads(context.threads);
  cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              ToInt(c.rows), ToInt(c.cols), ToInt(inner), alpha, a.data, LeadingDimension(a), b.data,
              LeadingDimension(b), beta, c.data, LeadingDimension(c));
}

void AddGram(const Context& context, MatrixView<const double> a, MatrixView<double> c) {
  Check(c.rows == a.cols && c.cols == a.cols, "the Gram of {} columns does not fit {} x {}", a.cols, c.rows, c.cols);
  openblas_set_num_threads(context.threads);
  cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, ToInt(a.cols), ToInt(a.rows), 1.0, a.data, LeadingDimension(a),
              1.0, c.data, LeadingDimension(c));
}

void SymmetrizeFromUpper(MatrixView<double> c) {
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = i + 1; j < c.cols; ++j) c(j, i) = c(i, j);
}

bool CholeskySolve(const Context& context, MatrixView<double> a, MatrixView<double> b, double* rcond) {
  Check(a.rows == a.cols && b.rows == a.rows, "a system of {} x {} with a right side of {} rows", a.rows, a.cols,
        b.rows);
  CheckFinite(a);
  openblas_set_num_threads(context.threads);
  const double norm = SymmetricNorm1(a);
  const auto elements = static_cast<double>(2 * a.rows * (a.rows + b.cols));
  const double flops = Cube(a.rows) / 3 + 2 * static_cast<double>(a.rows * a.rows * b.cols);
  bool definite = false;
  if (!Moved(context, flops, elements, [&](Solver& solver) { definite = solver.CholeskySolve(a, b); }))
    definite = CholeskySolveHere(a, b);
  if (!definite) return false;
  if (rcond != nullptr) *rcond = ReciprocalCondition(a, norm);
  return true;
}

std::vector<double> SymmetricEigen(const Context& context, MatrixView<double> a) {
  Check(a.rows == a.cols, "eigenvalues of a {} x {} matrix", a.rows, a.cols);
  CheckFinite(a);
  openblas_set_num_threads(context.threads);
  std::vector<double> values(a.rows);
  Check(EigenMoved(context, a, values) || SymmetricEigenHere(a, values),
        "the eigendecomposition of a {} x {} matrix did not converge", a.rows, a.cols);
  TransposeInPlace(a);
  return values;
}

// a = Q T Q' with T tridiagonal; all eigenvalues of T, the vectors of the largest ones, and those times Q.
LeadingEigen SymmetricEigenLeading(const Context& context, MatrixView<double> a, int64_t count) {
  Check(a.rows == a.cols && count >= 1 && count <= a.rows, "{} eigenvectors of a {} x {} matrix", count, a.rows,
        a.cols);
  CheckFinite(a);
  if (std::vector<double> values(a.rows); EigenMoved(context, a, values)) {
    LeadingEigen eigen{std::move(values), Matrix<double>(a.rows, count)};
    for (int64_t j = 0; j < count; ++j)
      for (int64_t i = 0; i < a.rows; ++i) eigen.vectors(i, j) = a(a.rows - 1 - j, i);
    return eigen;
  }
  openblas_set_num_threads(context.threads);
  const int n = ToInt(a.rows), lda = LeadingDimension(a), wanted = ToInt(count), first = n - wanted + 1;
  const int block = 64, lwork = std::max(block * n, 18 * n), liwork = 10 * n;
  std::vector<double> work(lwork), diagonal(n), beside(n), tau(n), leading(n);
  std::vector<int> iwork(liwork), support(2 * wanted);
  int info = 0, found = 0, accurate = 1;
  dsytrd_("L", &n, a.data, &lda, diagonal.data(), beside.data(), tau.data(), work.data(), &lwork, &info, 1);

  LeadingEigen eigen{diagonal, {}};
  std::vector<double> spent = beside;
  dsterf_(&n, eigen.values.data(), spent.data(), &info);
  Check(info == 0, "the eigenvalues of a {} x {} matrix did not converge", n, n);
  Matrix<double> columns(count, n);  // eigenvector j in row j, which LAPACK takes for its column j
  const double unused = 0;
  dstemr_("V", "I", &n, diagonal.data(), beside.data(), &unused, &unused, &first, &n, &found, leading.data(),
          columns.data(), &n, &wanted, support.data(), &accurate, work.data(), &lwork, iwork.data(), &liwork, &info, 1,
          1);
  Check(info == 0 && found == wanted, "the eigenvectors of a {} x {} matrix did not converge", n, n);
  dormtr_("L", "L", "N", &n, &wanted, a.data, &lda, tau.data(), columns.data(), &n, work.data(), &lwork, &info, 1, 1,
          1);
  eigen.vectors = Matrix<double>(n, count);
  for (int64_t j = 0; j < count; ++j)
    for (int64_t i = 0; i < n; ++i) eigen.vectors(i, j) = columns(count - 1 - j, i);
  return eigen;
}

}  // namespace shiftrt::linalg
