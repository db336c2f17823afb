#include "shift/ridge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/check.h"
#include "runtime/linalg.h"
#include "shift/parse.h"

namespace shiftrt {

namespace {

// Below this share of the largest eigenvalue a direction of the Gram is rounding, and a Cholesky is not to be trusted.
constexpr double kRounding = 1e-14;
// The grid of lambdas tried, in powers of ten of trace(H'H) / d.
constexpr double kLowestPower = -10, kHighestPower = 2, kPowerStep = 0.25;
constexpr int kRefinement = 16;  // points either side of the best one of the grid

// What is solved: (gram + lambda I) X = cross, centred or augmented, with the quantities GCV needs.
struct NormalEquations {
  Matrix<double> gram, cross;
  double delta_squares = 0;
  double scale = 0;  // largest diagonal element before centring
  int64_t tokens = 0;
  int64_t free = 0;  // parameters an output spends outside X: the free bias
};

NormalEquations MakeEquations(const RidgeAccumulator& sums, bool penalize_bias) {
  NormalEquations equations;
  equations.tokens = sums.tokens();
  Matrix<double> gram = sums.Gram();
  for (int64_t i = 0; i < sums.hidden(); ++i) equations.scale = std::max(equations.scale, gram(i, i));
  if (penalize_bias) {
    equations.gram = std::move(gram);
    equations.cross = sums.Cross().Clone();
    equations.delta_squares = sums.DeltaSquares();
  } else {
    equations.gram = sums.CenteredGram();
    equations.cross = sums.CenteredCross();
    equations.delta_squares = sums.CenteredDeltaSquares();
    equations.free = 1;
  }
  return equations;
}

double RelativeUnit(const RidgeAccumulator& sums) {
  const Matrix<double> gram = sums.Gram();
  double trace = 0;
  for (int64_t i = 0; i < sums.hidden(); ++i) trace += gram(i, i);
  return trace / static_cast<double>(sums.hidden());
}

// gram = V diag(values) V' and V' cross. Directions before `first` hold nothing but rounding.
struct Spectrum {
  std::vector<double> values;
  Matrix<double> vectors, projected;
  int64_t first = 0;

  int64_t size() const { return static_cast<int64_t>(values.size()); }
};

Spectrum Decompose(const Context& context, NormalEquations& equations) {
  Spectrum spectrum;
  spectrum.vectors = std::move(equations.gram);
  spectrum.values = linalg::SymmetricEigen(context, spectrum.vectors.view());
  const int64_t n = spectrum.size();
  spectrum.projected = Matrix<double>(n, equations.cross.cols());
  linalg::Gemm(context, true, false, 1.0, spectrum.vectors.view(), equations.cross.view(), 0.0,
               spectrum.projected.view());
  // No more directions than tokens can be real, whatever rounding makes of the others.
  spectrum.first = std::max<int64_t>(0, n - std::max<int64_t>(0, equations.tokens - equations.free));
  const double threshold = kRounding * std::max(spectrum.values.back(), equations.scale);
  while (spectrum.first < n && spectrum.values[spectrum.first] <= threshold) ++spectrum.first;
  return spectrum;
}

double Condition(const Spectrum& spectrum, double lambda) {
  const double lowest = std::max(0.0, spectrum.values.front()) + lambda;
  return lowest > 0 ? (spectrum.values.back() + lambda) / lowest : std::numeric_limits<double>::infinity();
}

// X = V (values + lambda)^-1 V' cross over the directions that are real; uses up `spectrum.projected`.
Matrix<double> SolveSpectral(const Context& context, Spectrum& spectrum, double lambda) {
  const MatrixView<double> projected = spectrum.projected.view();
  for (int64_t j = 0; j < spectrum.size(); ++j) {
    const double factor = j < spectrum.first ? 0.0 : 1.0 / (spectrum.values[j] + lambda);
    for (int64_t k = 0; k < projected.cols; ++k) projected(j, k) *= factor;
  }
  Matrix<double> x(spectrum.size(), projected.cols);
  linalg::Gemm(context, false, false, 1.0, spectrum.vectors.view(), projected, 0.0, x.view());
  return x;
}

// Generalised cross-validation, N RSS / (N - edf)^2 (Golub, Heath, Wahba 1979), as a function of lambda. Residual and
// N - edf are sums of positive terms, so that neither cancels when lambda is small or N <= d.
class GcvScore {
 public:
  GcvScore(const NormalEquations& equations, const Spectrum& spectrum)
      : tokens_(static_cast<double>(equations.tokens)) {
    double explained = 0;
    for (int64_t j = spectrum.first; j < spectrum.size(); ++j) {
      double energy = 0;
      for (int64_t k = 0; k < spectrum.projected.cols(); ++k)
        energy += spectrum.projected(j, k) * spectrum.projected(j, k);
      values_.push_back(spectrum.values[j]);
      explained_.push_back(energy / spectrum.values[j]);
      explained += explained_.back();
    }
    unexplained_ = std::max(0.0, equations.delta_squares - explained);
    spare_ = tokens_ - static_cast<double>(equations.free + static_cast<int64_t>(values_.size()));
  }

  double operator()(double lambda) const {
    double residual = unexplained_, freedom = spare_;
    for (size_t j = 0; j < values_.size(); ++j) {
      const double shrinkage = lambda / (values_[j] + lambda);
      residual += explained_[j] * shrinkage * shrinkage;
      freedom += shrinkage;
    }
    return tokens_ * residual / (freedom * freedom);
  }

 private:
  std::vector<double> values_, explained_;  // a direction: eigenvalue, and sum of squares it explains without shrinking
  double tokens_, unexplained_ = 0, spare_ = 0;
};

// Sums of the held-out tokens about the means of the fitted ones, which is what the fitted bias makes of them; with a
// penalised bias, as they are. Gram and cross products only.
NormalEquations HeldoutEquations(const RidgeAccumulator& heldout, const RidgeAccumulator& fitted, bool penalize_bias) {
  NormalEquations equations;
  const Matrix<double> gram = heldout.Gram();
  const Matrix<double>& cross = heldout.Cross();
  if (penalize_bias) {
    equations.gram = gram.Clone();
    equations.cross = cross.Clone();
    return equations;
  }
  const int64_t d = heldout.hidden();
  const double tokens = gram(d, d);
  const Matrix<double> h = fitted.InputMean(), delta = fitted.DeltaMean();
  equations.gram = Matrix<double>(d, d);
  equations.cross = Matrix<double>(d, d);
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      equations.gram(i, j) = gram(i, j) - h(0, i) * gram(d, j) - (gram(i, d) - h(0, i) * tokens) * h(0, j);
      equations.cross(i, j) = cross(i, j) - h(0, i) * cross(d, j) - (gram(i, d) - h(0, i) * tokens) * delta(0, j);
    }
  }
  return equations;
}

// Squared error on held-out tokens as a function of lambda. With X = V F P, F = diag(1 / (values + lambda)) and P the
// projected cross products, <X, C> and <X, G X> are a linear and a quadratic form in the diagonal of F.
class HoldoutScore {
 public:
  HoldoutScore(const Context& context, const Spectrum& spectrum, const NormalEquations& heldout)
      : spectrum_(spectrum), linear_(spectrum.size(), 0.0), quadratic_(spectrum.size(), spectrum.size()) {
    const int64_t n = spectrum.size(), outputs = spectrum.projected.cols();
    const MatrixView<const double> v = spectrum.vectors.view(), p = spectrum.projected.view();
    Matrix<double> cross(n, outputs), image(n, n), products(n, n);
    linalg::Gemm(context, true, false, 1.0, v, heldout.cross.view(), 0.0, cross.view());
    linalg::Gemm(context, false, false, 1.0, heldout.gram.view(), v, 0.0, image.view());
    linalg::Gemm(context, true, false, 1.0, v, image.view(), 0.0, quadratic_.view());
    linalg::Gemm(context, false, true, 1.0, p, p, 0.0, products.view());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) quadratic_(i, j) *= products(i, j);
      for (int64_t k = 0; k < outputs; ++k) linear_[i] += p(i, k) * cross(i, k);
    }
  }

  double operator()(double lambda) const {
    double change = 0;  // of the squared error, against no map at all
    for (int64_t i = spectrum_.first; i < spectrum_.size(); ++i) {
      double sum = -2 * linear_[i];
      for (int64_t j = spectrum_.first; j < spectrum_.size(); ++j)
        sum += quadratic_(i, j) / (spectrum_.values[j] + lambda);
      change += sum / (spectrum_.values[i] + lambda);
    }
    return change;
  }

 private:
  const Spectrum& spectrum_;
  std::vector<double> linear_;
  Matrix<double> quadratic_;
};

// The power of ten between `low` and `high` with the lowest score; the highest one where they are level.
template <typename Score>
double BestPower(const Score& score, double unit, double low, double high, int intervals) {
  double best = high, best_score = std::numeric_limits<double>::infinity();
  for (int i = intervals; i >= 0; --i) {
    const double power = low + (high - low) * i / intervals;
    const double value = score(unit * std::pow(10.0, power));
    if (value < best_score) {
      best = power;
      best_score = value;
    }
  }
  return best;
}

template <typename Score>
double BestLambda(const Score& score, double unit) {
  const int intervals = static_cast<int>(std::lround((kHighestPower - kLowestPower) / kPowerStep));
  const double coarse = BestPower(score, unit, kLowestPower, kHighestPower, intervals);
  const double low = std::max(kLowestPower, coarse - kPowerStep), high = std::min(kHighestPower, coarse + kPowerStep);
  return unit * std::pow(10.0, BestPower(score, unit, low, high, 2 * kRefinement));
}

// By Cholesky; an empty matrix where that fails or is not to be trusted.
Matrix<double> SolveCholesky(const Context& context, const NormalEquations& equations, double lambda,
                             double* condition) {
  Matrix<double> gram = equations.gram.Clone(), x = equations.cross.Clone();
  for (int64_t i = 0; i < gram.rows(); ++i) gram(i, i) += lambda;
  double rcond = 0;
  if (!linalg::CholeskySolve(context, gram.view(), x.view(), &rcond) || !(rcond >= kRounding)) return {};
  *condition = 1.0 / rcond;
  return x;
}

Matrix<double> Solve(const Context& context, NormalEquations& equations, double unit, const LambdaSpec& spec,
                     const NormalEquations* heldout, RidgeSolution& solution) {
  const bool chosen = spec.kind == LambdaSpec::Kind::kGcv || heldout != nullptr;
  if (!chosen) {
    solution.lambda = spec.kind == LambdaSpec::Kind::kRelative ? spec.value * unit : spec.value;
    Matrix<double> x = SolveCholesky(context, equations, solution.lambda, &solution.condition);
    if (!x.empty()) return x;
  }
  Spectrum spectrum = Decompose(context, equations);
  if (heldout != nullptr) {
    solution.lambda = BestLambda(HoldoutScore(context, spectrum, *heldout), unit);
  } else if (chosen) {
    solution.lambda = BestLambda(GcvScore(equations, spectrum), unit);
  }
  solution.condition = Condition(spectrum, solution.lambda);
  if (!chosen) {
    solution.warning = fmt::format(
        "the ridge system has condition number {:.1e} at lambda {:.3g}: solved by eigendecomposition, {} of {} "
        "directions left out",
        solution.condition, solution.lambda, spectrum.first, spectrum.size());
  }
  return SolveSpectral(context, spectrum, solution.lambda);
}

// mean(D) - mean(H) A: the bias that leaves no mean error.
Matrix<double> FreeBias(const Context& context, const RidgeAccumulator& sums, MatrixView<const double> a) {
  Matrix<double> b = sums.DeltaMean();
  linalg::Gemm(context, false, false, -1.0, sums.InputMean().view(), a, 1.0, b.view());
  return b;
}

double Dot(MatrixView<const double> a, MatrixView<const double> b) {
  double sum = 0;
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.cols; ++j) sum += a(i, j) * b(i, j);
  return sum;
}

}  // namespace

LambdaSpec ParseLambda(const std::string& text) {
  if (text == "gcv") return {};
  if (text == "holdout") return {LambdaSpec::Kind::kHoldout, 0};
  std::string_view number = text;
  LambdaSpec spec{LambdaSpec::Kind::kAbsolute, 0};
  if (number.ends_with("rel")) {
    spec.kind = LambdaSpec::Kind::kRelative;
    number.remove_suffix(3);
  }
  if (!ParseNumber(number, &spec.value) || !std::isfinite(spec.value) || spec.value < 0)
    FailUsage(
        "lambda \"{}\": expected a number not below 0 (1e-2), one relative to trace(H'H)/d (1e-4rel), gcv or "
        "holdout",
        text);
  return spec;
}

std::string Format(const LambdaSpec& spec) {
  switch (spec.kind) {
    case LambdaSpec::Kind::kAbsolute: return fmt::format("{}", spec.value);
    case LambdaSpec::Kind::kRelative: return fmt::format("{}rel", spec.value);
    case LambdaSpec::Kind::kGcv: return "gcv";
    case LambdaSpec::Kind::kHoldout: return "holdout";
  }
  return "?";
}

RidgeSolution SolveRidge(const Context& context, const RidgeAccumulator& sums, const RidgeOptions& options,
                         const RidgeAccumulator* heldout) {
  Check(sums.tokens() > 0, "ridge regression without a single token");
  Check(sums.weight() > 0, "ridge regression on {} tokens that all have weight 0", sums.tokens());
  std::optional<NormalEquations> judge;
  if (options.lambda.kind == LambdaSpec::Kind::kHoldout) {
    Check(heldout != nullptr && heldout->tokens() > 0,
          "lambda holdout needs held-out calibration tokens; there are none");
    judge = HeldoutEquations(*heldout, sums, options.penalize_bias);
  }
  RidgeSolution solution;
  NormalEquations equations = MakeEquations(sums, options.penalize_bias);
  Matrix<double> x = Solve(context, equations, RelativeUnit(sums), options.lambda, judge ? &*judge : nullptr, solution);
  if (options.penalize_bias) {
    const int64_t d = sums.hidden();
    solution.a = Matrix<double>(d, d);
    solution.b = Matrix<double>(1, d);
    std::copy_n(x.data(), d * d, solution.a.data());
    std::copy_n(x.row(d), d, solution.b.data());
  } else {
    solution.b = FreeBias(context, sums, x.view());
    solution.a = std::move(x);
  }
  return solution;
}

double RSquared(const Context& context, const RidgeAccumulator& sums, MatrixView<const double> a,
                MatrixView<const double> b) {
  const int64_t d = sums.hidden();
  Check(a.rows == d && a.cols == d && b.rows == 1 && b.cols == d,
        "an adapter ({}, {}) with bias ({}, {}) on tokens of hidden size {}", a.rows, a.cols, b.rows, b.cols, d);
  const double total = sums.CenteredDeltaSquares();
  if (sums.tokens() == 0 || total <= 0) return 0.0;
  // total - residual = 2 <A, C_c> - <A, G_c A> - weight |mean error|^2
  Matrix<double> image(d, d);
  linalg::Gemm(context, false, false, 1.0, sums.CenteredGram().view(), a, 0.0, image.view());
  double mean_error = 0;
  const Matrix<double> bias = FreeBias(context, sums, a);
  for (int64_t j = 0; j < d; ++j) mean_error += (bias(0, j) - b(0, j)) * (bias(0, j) - b(0, j));
  const double explained = 2 * Dot(a, sums.CenteredCross().view()) - Dot(a, image.view()) - sums.weight() * mean_error;
  return explained / total;
}

}  // namespace shiftrt
