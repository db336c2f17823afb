// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/ridge.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "runtime/not_finite.h"
#include "shift/sums/moments.h"

namespace shiftrt {

namespace {

using linalg::Array;
using linalg::ArrayPtr;
using linalg::Solver;

// Below this share of the largest eigenvalue a direction of the Gram is rounding, and a Cholesky is not to be trusted.
constexpr double kRounding = 1e-14;
// The lambdas among which one is chosen, in powers of ten of trace(H'H) / n, and their number per power of ten.
constexpr int kLowestPower = -10, kHighestPower = 2, kFinest = 64;

// The system (gram + lambda I) X = cross, centred or augmented, with the quantities that GCV needs.
struct NormalEquations {
  ArrayPtr gram, cross;
  double delta_squares = 0;
  double scale = 0;  // largest diagonal element before centring
  int64_t tokens = 0;
  int64_t free = 0;  // parameters an output spends outside X: the free bias
};

NormalEquations MakeEquations(Solver& solver, const RidgeSums& sums, bool penalize_bias) {
  NormalEquations equations;
  equations.tokens = sums.tokens();
  for (const double square : sums.InputSquares()) equations.scale = std::max(equations.scale, square);
  if (penalize_bias) {
    equations.gram = solver.Copied(*sums.matrices().gram.On(solver));
    equations.cross = solver.Copied(*sums.matrices().cross.On(solver));
    equations.delta_squares = sums.DeltaSquares();
  } else {
    equations.gram = CenteredGram(solver, sums);
    equations.cross = CenteredCross(solver, sums);
    equations.delta_squares = sums.CenteredDeltaSquares();
    equations.free = 1;
  }
  // With other values an eigendecomposition might not terminate.
  for (const double square : solver.RowDots(*equations.gram, *equations.gram))
    CheckIsFinite(square, "the sums of a ridge regression are not finite");
  return equations;
}

double RelativeUnit(const RidgeSums& sums) {
  const std::vector<double> squares = sums.InputSquares();
  return std::accumulate(squares.begin(), squares.end(), 0.0) / static_cast<double>(sums.inputs());
}

// gram = V diag(values) V' and V' cross. Directions before `first` hold nothing but rounding.
struct Spectrum {
  std::vector<double> values;
  ArrayPtr vectors, projected;  // V', and V' cross
  int64_t first = 0;

  int64_t size() const { return static_cast<int64_t>(values.size()); }
};

// Uses up the equations' matrices.
Spectrum Decompose(Solver& solver, NormalEquations& equations) {
  Spectrum spectrum;
  spectrum.vectors = std::move(equations.gram);
  spectrum.values = solver.Eigen(*spectrum.vectors);
  const int64_t n = spectrum.size();
  spectrum.projected = solver.Product({*spectrum.vectors}, {*equations.cross});
  equations.cross.reset();
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
ArrayPtr SolveSpectral(Solver& solver, Spectrum& spectrum, double lambda) {
  std::vector<double> factors(spectrum.size(), 0.0);
  for (int64_t j = spectrum.first; j < spectrum.size(); ++j) factors[j] = 1.0 / (spectrum.values[j] + lambda);
  solver.ScaleRows(factors, *spectrum.projected);
  return solver.Product({*spectrum.vectors, true}, {*spectrum.projected});
}

// Generalised cross-validation, N RSS / (N - edf)^2 (Golub, Heath, Wahba 1979), as a function of lambda. Residual and
// N - edf are sums of positive terms, so that neither cancels when lambda is small or N <= d.
//
// A token that repeats another in input and update, such as the same first token of two samples, has no error of its
// own. Where the map can explain all tokens, such repetitions are not counted: with them N - edf would stay above 0 as
// lambda goes to 0, and the residual would not, so that the lowest lambda had the best score.
class GcvScore {
 public:
  GcvScore(Solver& solver, const NormalEquations& equations, const Spectrum& spectrum)
      : tokens_(static_cast<double>(equations.tokens)) {
    const std::vector<double> energies = solver.RowDots(*spectrum.projected, *spectrum.projected);
    double explained = 0;
    for (int64_t j = spectrum.first; j < spectrum.size(); ++j) {
      values_.push_back(spectrum.values[j]);
      explained_.push_back(energies[j] / spectrum.values[j]);
      explained += explained_.back();
    }
    unexplained_ = std::max(0.0, equations.delta_squares - explained);
    const int64_t used = equations.free + static_cast<int64_t>(values_.size());
    constexpr double kNothing = 1e-6;  // as a share of the squares; what is left is rounding
    const bool explains_all =
        equations.tokens - equations.free <= spectrum.size() || unexplained_ <= kNothing * equations.delta_squares;
    if (spectrum.first > 0 && explains_all) tokens_ = static_cast<double>(used);
    spare_ = tokens_ - static_cast<double>(used);
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

// Squared error on held-out tokens as a function of lambda. With X = V F P, F = diag(1 / (values + lambda)) and P the
// projected cross products, <X, C> and <X, G X> are a linear and a quadratic form in the diagonal of F. The held-out
// sums are about the means of the fitted tokens, which is what the fitted bias makes of them; with a penalised bias, as
// they are.
class HoldoutScore {
 public:
  HoldoutScore(Solver& solver, const Spectrum& spectrum, const RidgeSums& fitted, const RidgeSums& heldout,
               bool penalize_bias)
      : spectrum_(spectrum) {
    const int64_t n = spectrum.size();
    const Array &v = *spectrum.vectors, &p = *spectrum.projected;
    {
      const std::shared_ptr<const Array> gram =
          penalize_bias ? heldout.matrices().gram.On(solver) : GramAbout(solver, heldout, fitted.InputMean());
      const ArrayPtr image = solver.Make(n, n);
      solver.Symm(linalg::Side::kRight, *gram, v, *image);
      quadratic_ = solver.Downloaded(*solver.Product({*image}, {v, true}));
    }
    const Matrix<double> products = solver.Downloaded(*solver.Product({p}, {p, true}));
    for (int64_t i = 0; i < quadratic_.size(); ++i) quadratic_.data()[i] *= products.data()[i];
    const std::shared_ptr<const Array> cross =
        penalize_bias ? heldout.matrices().cross.On(solver)
                      : CrossAbout(solver, heldout, fitted.InputMean(), fitted.DeltaMean());
    linear_ = solver.RowDots(p, *solver.Product({v}, {*cross}));
  }

  double operator()(double lambda) const {
    double change = 0;  // change of the squared error against no map at all
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

// The scores of some lambdas.
using Scores = std::function<std::vector<double>(std::span<const double> lambdas)>;
template <typename Score>
Scores OneByOne(const Score& score) {
  return [&score](std::span<const double> lambdas) {
    std::vector<double> scores;
    for (const double lambda : lambdas) scores.push_back(score(lambda));
    return scores;
  };
}

// The lambda with the lowest score, the highest one where they are level: of all half powers of ten, then of ever
// smaller steps on either side of the best so far. These few dozen scores find the best of the finest steps wherever
// the score has a single minimum within a power of ten of it.
double BestLambda(const Scores& scores, double unit) {
  std::map<int, double> found;  // by the place: finest steps above `unit`
  const auto lambda = [&](int place) { return unit * std::pow(10.0, place / double{kFinest}); };
  const auto best = [&] {
    int place = found.rbegin()->first;
    double least = std::numeric_limits<double>::infinity();
    for (auto at = found.rbegin(); at != found.rend(); ++at)
      if (at->second < least) std::tie(place, least) = *at;
    return place;
  };
  const auto look = [&](int first, int last, int step) {
    std::vector<int> places;
    std::vector<double> lambdas;
    for (int place = first; place <= last; place += step) {
      if (place < kLowestPower * kFinest || place > kHighestPower * kFinest || found.contains(place)) continue;
      places.push_back(place);
      lambdas.push_back(lambda(place));
    }
    const std::vector<double> values = scores(lambdas);
    for (size_t i = 0; i < places.size(); ++i) found[places[i]] = values[i];
  };
  look(kLowestPower * kFinest, kHighestPower * kFinest, kFinest / 2);
  for (const int step : {16, 4, 1}) {
    const int center = best();
    look(center - 3 * step, center + 3 * step, step);
  }
  return lambda(best());
}

// By Cholesky; null where that fails or is not to be trusted.
ArrayPtr SolveCholesky(Solver& solver, const NormalEquations& equations, double lambda, double* condition) {
  const ArrayPtr factor = solver.Copied(*equations.gram);
  ArrayPtr x = solver.Copied(*equations.cross);
  solver.AddToDiagonal(lambda, *factor);
  double rcond = 0;
  if (!solver.CholeskySolve(*factor, *x, &rcond) || !(rcond >= kRounding)) return nullptr;
  *condition = 1.0 / rcond;
  return x;
}

struct Problem {
  const RidgeSums& sums;
  const RidgeOptions& options;
  const RidgeSums* heldout;  // for holdout
};

// X, and all of a solution but `a` and `b`.
struct Solved {
  ArrayPtr x;
  RidgeSolution solution;
};

// Lambda by generalised cross-validation from a tridiagonal form, whose scores are those of GcvScore without an
// eigenvector, and X by Cholesky. No value where a direction holds nothing but rounding and must be left out.
std::optional<Solved> SolveGcv(Solver& solver, const Problem& problem, double unit) {
  NormalEquations equations = MakeEquations(solver, problem.sums, problem.options.penalize_bias);
  const ArrayPtr reduced = solver.Copied(*equations.gram);
  const linalg::Tridiagonal t = solver.Tridiagonalize(*reduced);
  for (const std::vector<double>* part : {&t.diagonal, &t.off_diagonal})
    for (const double x : *part) CheckIsFinite(x, "the sums of a ridge regression are not finite");
  const auto [lowest, highest] = linalg::ExtremeEigenvalues(t);
  if (lowest <= kRounding * std::max(highest, equations.scale)) return std::nullopt;
  const std::optional<linalg::Bidiagonal> root = linalg::FactorFromBelow(t);
  if (!root) return std::nullopt;

  const ArrayPtr rotated = solver.Copied(*equations.cross);
  solver.RotateColumns(*reduced, t, *rotated);
  const auto squares = [&](std::span<const double> lambdas) {
    std::vector<linalg::Bidiagonal> shrinkages;
    for (const double lambda : lambdas) shrinkages.push_back(linalg::Shrinkage(t, lambda));
    return solver.ShrunkSquares(*root, shrinkages, *rotated);
  };
  const std::vector<double> without_limit = {std::numeric_limits<double>::infinity()};
  const double unexplained = std::max(0.0, equations.delta_squares - squares(without_limit)[0]);
  const double tokens = static_cast<double>(equations.tokens),
               spare = static_cast<double>(equations.tokens - equations.free - t.size());
  const Scores scores = [&](std::span<const double> lambdas) {
    std::vector<double> found = squares(lambdas);
    for (size_t i = 0; i < found.size(); ++i) {
      const double freedom = spare + linalg::ShrinkageTrace(t, lambdas[i]);
      found[i] = tokens * (unexplained + found[i]) / (freedom * freedom);
    }
    return found;
  };
  Solved solved;
  const double lambda = solved.solution.lambda = BestLambda(scores, unit);
  solved.solution.condition = (highest + lambda) / (lowest + lambda);
  solver.AddToDiagonal(lambda, *equations.gram);
  if (!solver.CholeskySolve(*equations.gram, *equations.cross, nullptr)) return std::nullopt;
  solved.x = std::move(equations.cross);
  return solved;
}

Solved Solve(Solver& solver, const Problem& problem) {
  const LambdaSpec& spec = problem.options.lambda;
  const bool penalize_bias = problem.options.penalize_bias;
  const double unit = RelativeUnit(problem.sums);
  // With fewer tokens than directions, some hold nothing but rounding.
  const int64_t free = penalize_bias ? 0 : 1, side = problem.sums.inputs() + 1 - free;
  const bool tridiagonal = solver.AvoidsEigen(side, problem.sums.hidden());
  if (spec.kind == LambdaSpec::Kind::kGcv && tridiagonal && problem.sums.tokens() - free >= side) {
    std::optional<Solved> found = SolveGcv(solver, problem, unit);
    if (found) return *std::move(found);
  }
  NormalEquations equations = MakeEquations(solver, problem.sums, penalize_bias);
  Solved solved;
  RidgeSolution& solution = solved.solution;
  const bool chosen = spec.kind == LambdaSpec::Kind::kGcv || spec.kind == LambdaSpec::Kind::kHoldout;
  if (!chosen) {
    solution.lambda = spec.kind == LambdaSpec::Kind::kRelative ? spec.value * unit : spec.value;
    solved.x = SolveCholesky(solver, equations, solution.lambda, &solution.condition);
    if (solved.x != nullptr) return solved;
  }
  Spectrum spectrum = Decompose(solver, equations);
  if (spec.kind == LambdaSpec::Kind::kHoldout) {
    const HoldoutScore score(solver, spectrum, problem.sums, *problem.heldout, penalize_bias);
    solution.lambda = BestLambda(OneByOne(score), unit);
  } else if (spec.kind == LambdaSpec::Kind::kGcv) {
    const GcvScore score(solver, equations, spectrum);
    solution.lambda = BestLambda(OneByOne(score), unit);
  }
  solution.condition = Condition(spectrum, solution.lambda);
  if (!chosen) {
    solution.warning = fmt::format(
        "the ridge system has condition number {:.1e} at lambda {:.3g}: solved by eigendecomposition, {} of {} "
        "directions left out",
        solution.condition, solution.lambda, spectrum.first, spectrum.size());
  }
  solved.x = SolveSpectral(solver, spectrum, solution.lambda);
  return solved;
}

// Calls body(solver) where a problem of this many inputs is worth solving.
template <typename Body>
auto WithRidgeSolver(const Context& context, int64_t inputs, const Body& body) {
  const auto n = static_cast<double>(inputs);
  return linalg::WithSolver(context, EigenFlops(inputs), 3 * n * n, body);
}

// Makes the solution from X: the map, and the bias, which was penalised or leaves no mean error.
RidgeSolution Finished(Solver& solver, const Problem& problem, Solved solved) {
  const int64_t n = problem.sums.inputs(), d = problem.sums.hidden();
  RidgeSolution& solution = solved.solution;
  if (!problem.options.penalize_bias) {
    solution.b = problem.sums.DeltaMean();
    const ArrayPtr b = solver.Uploaded(solution.b.view());
    solver.Gemm({*solver.Uploaded(problem.sums.InputMean().view())}, {*solved.x}, {-1, 1}, *b);
    solver.Download(*b, solution.b.view());
    solution.a = {solver, std::move(solved.x)};
    return std::move(solution);
  }
  solution.bias_penalty = solution.lambda;
  const std::vector<double> bias = solver.Elements(*solved.x, n * d, 1, d);
  solution.b = Matrix<double>(1, d);
  std::copy(bias.begin(), bias.end(), solution.b.data());
  ArrayPtr a = solver.Make(n, d);
  solver.Copy(*solved.x, *a);
  solution.a = {solver, std::move(a)};
  return std::move(solution);
}

// 2 <A, C_c> - <A, G_c A> of A = P Q, which is 2 <P, C_c Q'> - <P, G_c P (Q Q')>: nothing larger than P is made of
// them. With P' = [P; -mean(H) P] both are products with the sums as they are, <P', C Q'> and <P', G P' (Q Q')>.
double ExplainedByMap(Solver& solver, const RidgeSums& sums, const LinearMap& map) {
  const int64_t n = sums.inputs(), rank = map.p.cols;
  Matrix<double> p(n + 1, rank);
  const Matrix<double> mean = sums.InputMean();
  std::fill_n(p.row(n), rank, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(map.p.row(i), rank, p.row(i));
    for (int64_t j = 0; j < rank; ++j) p(n, j) -= mean(0, i) * map.p(i, j);
  }
  const auto sum = [&](const Array& a, const Array& b) {
    const std::vector<double> dots = solver.RowDots(a, b);
    return std::accumulate(dots.begin(), dots.end(), 0.0);
  };
  const ArrayPtr there = solver.Reading(p.view());
  const std::shared_ptr<const Array> gram = sums.matrices().gram.On(solver), cross = sums.matrices().cross.On(solver);
  ArrayPtr image = solver.Make(n + 1, rank);
  solver.Symm(linalg::Side::kLeft, *gram, *there, *image);
  if (!map.factored()) return 2 * sum(*there, *cross) - sum(*there, *image);
  const std::shared_ptr<const Array> q = solver.Reading(map.q);
  image = solver.Product({*image}, {*solver.Product({*q}, {*q, true})});
  return 2 * sum(*there, *solver.Product({*cross}, {*q, true})) - sum(*there, *image);
}

}  // namespace

double EigenFlops(int64_t n) { return 9 * std::pow(static_cast<double>(n), 3); }

RidgeSolution SolveRidge(const Context& context, const RidgeSums& sums, const RidgeOptions& options,
                         const RidgeSums* heldout) {
  const int64_t n = sums.inputs();
  Check(sums.tokens() > 0, "ridge regression without a single token, or on tokens that all have weight 0");
  Check(options.lambda.kind != LambdaSpec::Kind::kHoldout || (heldout != nullptr && heldout->tokens() > 0),
        "lambda holdout needs held-out calibration tokens; there are none");
  return WithRidgeSolver(context, n, [&](Solver& solver) {
    const Problem problem{sums, options, heldout};
    return Finished(solver, problem, Solve(solver, problem));
  });
}

Matrix<double> BestBias(const Context& context, const RidgeSums& sums, const LinearMap& map, double penalty) {
  Matrix<double> b = sums.DeltaMean();
  const auto shrunk = [&] {
    for (double& x : b.span()) x *= sums.weight() / (sums.weight() + penalty);
    return std::move(b);
  };
  if (map.p.cols == 0) return shrunk();
  Matrix<double> image(1, map.p.cols);
  linalg::Gemm(context, false, false, 1.0, sums.InputMean().view(), map.p, 0.0, image.view());
  if (map.factored()) {
    linalg::Gemm(context, false, false, -1.0, image.view(), map.q, 1.0, b.view());
  } else {
    for (int64_t j = 0; j < b.cols(); ++j) b(0, j) -= image(0, j);
  }
  return shrunk();
}

double RSquared(const Context& context, const RidgeSums& sums, const LinearMap& map, MatrixView<const double> b) {
  if (sums.tokens() == 0) return std::numeric_limits<double>::quiet_NaN();
  const int64_t n = sums.inputs(), d = sums.hidden(), rank = map.p.cols;
  Check(map.p.rows == n && (map.factored() ? map.q.rows == rank && map.q.cols == d : rank == d) && b.rows == 1 &&
            b.cols == d,
        "a map ({}, {}) with bias ({}, {}) for {} inputs and {} outputs", map.p.rows, rank, b.rows, b.cols, n, d);
  const double total = sums.CenteredDeltaSquares();
  if (total <= 0) return 0.0;
  // total - residual = 2 <A, C_c> - <A, G_c A> - weight |mean error|^2
  double mean_error = 0;
  const Matrix<double> bias = BestBias(context, sums, map);
  for (int64_t j = 0; j < d; ++j) mean_error += (bias(0, j) - b(0, j)) * (bias(0, j) - b(0, j));
  double explained = -sums.weight() * mean_error;
  if (rank > 0)
    explained += WithRidgeSolver(context, n, [&](Solver& solver) { return ExplainedByMap(solver, sums, map); });
  return explained / total;
}

}  // namespace shiftrt
