#include "shift/factorize.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"
#include "runtime/linalg.h"
#include "shift/convert.h"

namespace shiftrt {

namespace {

Matrix<double> Product(const Context& context, bool transpose_a, MatrixView<const double> a,
                       MatrixView<const double> b) {
  Matrix<double> c(transpose_a ? a.cols : a.rows, b.cols);
  linalg::Gemm(context, transpose_a, false, 1.0, a, b, 0.0, c.view());
  return c;
}

// Norms of the columns of X in the metric G, from X and G X.
std::vector<double> ColumnNorms(MatrixView<const double> x, MatrixView<const double> gx) {
  std::vector<double> norms(x.cols, 0.0);
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < x.cols; ++j) norms[j] += x(i, j) * gx(i, j);
  for (double& norm : norms) norm = std::sqrt(std::max(0.0, norm));
  return norms;
}

}  // namespace

Factorization ParseFactorization(const std::string& text) {
  if (text == "svd") return Factorization::kSvd;
  if (text == "rrr") return Factorization::kReducedRank;
  FailUsage("unknown factorization \"{}\"; known: svd, rrr", text);
}

const char* Name(Factorization factorization) { return factorization == Factorization::kSvd ? "svd" : "rrr"; }

// With V the leading right singular vectors of G^(1/2) A, which are eigenvectors of A' G A, the best map of rank r in
// the metric G is A V V': no root or inverse of G is needed, and G = I gives the SVD of A. Only V comes from the
// squared matrix; P and the leading singular values are products with A itself, so they do not lose half of the digits.
LowRank Factorize(const Context& context, const RidgeAccumulator& sums, const RidgeSolution& solution, int64_t rank,
                  Factorization factorization) {
  const int64_t d = sums.hidden();
  if (rank < 1 || rank > d) FailUsage("an adapter of rank {}: expected 1 to {}, the hidden size", rank, d);
  const MatrixView<const double> a = solution.a.view();
  const bool reduced_rank = factorization == Factorization::kReducedRank;

  Matrix<double> image;  // G_c A
  if (reduced_rank) image = Product(context, false, sums.CenteredGram().view(), a);
  const MatrixView<const double> metric_a = reduced_rank ? MatrixView<const double>(image.view()) : a;
  const Matrix<double> square = Product(context, true, a, metric_a);
  const linalg::LeadingEigen eigen = linalg::SymmetricEigenLeading(context, square.view(), rank);
  const Matrix<double>& v = eigen.vectors;
  LowRank out{Product(context, false, a, v.view()), Matrix<double>(rank, d), {}, {}};
  for (int64_t r = 0; r < rank; ++r)
    for (int64_t i = 0; i < d; ++i) out.q(r, i) = v(i, r);

  out.singular_values = reduced_rank ? ColumnNorms(out.p.view(), Product(context, false, metric_a, v.view()).view())
                                     : ColumnNorms(out.p.view(), out.p.view());
  for (int64_t j = d - rank - 1; j >= 0; --j) out.singular_values.push_back(std::sqrt(std::max(0.0, eigen.values[j])));

  if (reduced_rank) {
    out.b = sums.DeltaMean();
    const Matrix<double> mean_p = Product(context, false, sums.InputMean().view(), out.p.view());
    linalg::Gemm(context, false, false, -1.0, mean_p.view(), out.q.view(), 1.0, out.b.view());
  } else {
    out.b = solution.b.Clone();
  }
  return out;
}

std::shared_ptr<const Lra> MakeLra(const RidgeSolution& solution) {
  auto lra = std::make_shared<Lra>();
  lra->a = Converted<float>(solution.a);
  lra->b = Converted<float>(solution.b);
  return lra;
}

std::shared_ptr<const Lra> MakeLra(const LowRank& factors) {
  auto lra = std::make_shared<Lra>();
  lra->p = Converted<float>(factors.p);
  lra->q = Converted<float>(factors.q);
  lra->b = Converted<float>(factors.b);
  return lra;
}

}  // namespace shiftrt
