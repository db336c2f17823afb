// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/factorize.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "shift/fit/convert.h"
#include "shift/sums/moments.h"

namespace shiftrt {

namespace {

using linalg::Solver;

// Norms of the columns of X in the metric G, from X and G X.
std::vector<double> ColumnNorms(const Matrix<double>& x, const Matrix<double>& gx) {
  std::vector<double> norms(x.cols(), 0.0);
  for (int64_t i = 0; i < x.rows(); ++i)
    for (int64_t j = 0; j < x.cols(); ++j) norms[j] += x(i, j) * gx(i, j);
  for (double& norm : norms) norm = std::sqrt(std::max(0.0, norm));
  return norms;
}

// A in a solver's memory, and times the metric: G_c A (rrr), or A itself (svd, svd-refit).
class InMetric {
 public:
  InMetric(Solver& solver, const RidgeSums& sums, const linalg::PlacedMatrix& a, Factorization factorization)
      : a_(a.On(solver)) {
    if (factorization != Factorization::kReducedRank) return;
    metric_a_ = solver.Make(a.rows(), a.cols());
    solver.Symm(linalg::Side::kLeft, *CenteredGram(solver, sums), *a_, *metric_a_);
  }
  const linalg::Array& a() const { return *a_; }
  const linalg::Array& metric_a() const { return metric_a_ != nullptr ? *metric_a_ : *a_; }
  // A' G_c A, or A' A.
  linalg::ArrayPtr Squares(Solver& solver) const { return solver.Product({a(), true}, {metric_a()}); }

 private:
  std::shared_ptr<const linalg::Array> a_;
  linalg::ArrayPtr metric_a_;
};

// Calls body(solver) where a problem of one site is worth solving.
template <typename Body>
auto WithSolver(const Context& context, int64_t hidden, const Body& body) {
  const auto d = static_cast<double>(hidden);
  return linalg::WithSolver(context, FactorizeFlops(hidden), 2 * d * d, body);
}

linalg::Tridiagonal WithoutReflectors(linalg::Tridiagonal t) {
  t.reflectors.clear();
  return t;
}

// With V the leading right singular vectors of G^(1/2) A, which are eigenvectors of A' G A, the best map of rank r in
// the metric G is A V V': no root or inverse of G is needed, and G = I gives the SVD of A. Only V comes from the
// squared matrix; P and the leading singular values are products with A itself, so they do not lose half of the digits.
//
// The steps Reduce, Decompose and Finish follow one another. Decompose needs no solver.
class Factorizing {
 public:
  Factorizing(const ToFactorize& map, int64_t rank) : map_(map), rank_(rank) {
    CheckRank(RankSpec::Fixed(rank), map.sums.hidden());
  }
  void Reduce(Solver& solver) {
    maps_.emplace(solver, map_.sums, map_.solution.a, map_.factorization);
    squares_ = maps_->Squares(solver);
    reduced_ = linalg::FiniteTridiagonal(solver, *squares_);
  }
  void Decompose() { vectors_ = linalg::LeadingVectors(reduced_, rank_); }
  LowRank Finish(Solver& solver) {
    const linalg::ArrayPtr vectors = solver.Uploaded(vectors_.view());  // V' in its rows
    solver.Rotate(*squares_, reduced_, *vectors);
    const linalg::ArrayPtr p = solver.Product({maps_->a()}, {*vectors, true}),
                           metric_p = solver.Product({maps_->metric_a()}, {*vectors, true});
    LowRank factors{.p = solver.Downloaded(*p), .q = solver.Downloaded(*vectors)};
    factors.singular_values = ColumnNorms(factors.p, solver.Downloaded(*metric_p));
    return factors;
  }
  // The parts of the result that the host computes.
  LowRank Completed(LowRank factors) {
    factors.squares = WithoutReflectors(std::move(reduced_));
    factors.bias_penalty = map_.solution.bias_penalty;
    factors.b = map_.factorization == Factorization::kSvd
                    ? map_.solution.b.Clone()
                    : BestBias(map_.context, map_.sums, {factors.p.view(), factors.q.view()}, factors.bias_penalty);
    return factors;
  }
  const ToFactorize& map() const { return map_; }
  int64_t rank() const { return rank_; }

 private:
  const ToFactorize map_;
  const int64_t rank_;
  std::optional<InMetric> maps_;
  linalg::ArrayPtr squares_;
  linalg::Tridiagonal reduced_;
  Matrix<double> vectors_;
};

// Calls body(solver) with the solver of a GPU. False if it is not to be used or its memory is too small.
bool OnGpu(const ToFactorize& map, const std::function<void(Solver&)>& body) {
  const auto d = static_cast<double>(map.sums.hidden());
  return linalg::Moved(map.context, FactorizeFlops(map.sums.hidden()), 2 * d * d, body);
}

class Decomposing : public PendingFactors {
 public:
  explicit Decomposing(std::unique_ptr<Factorizing> steps)
      : steps_(std::move(steps)), host_(std::async(std::launch::async, [this] { steps_->Decompose(); })) {}
  LowRank Finish() override {
    host_.get();
    LowRank factors;
    if (OnGpu(steps_->map(), [&](Solver& solver) { factors = steps_->Finish(solver); }))
      return steps_->Completed(std::move(factors));
    const ToFactorize map = steps_->map();
    const int64_t rank = steps_->rank();
    steps_.reset();  // its memory may be what is missing
    return LeadingFactors(map, rank);
  }

 private:
  std::unique_ptr<Factorizing> steps_;
  std::future<void> host_;  // its destructor waits
};

int64_t RankOfEnergy(const std::vector<double>& singular_values, double share) {
  double total = 0, kept = 0;
  for (double value : singular_values) total += value * value;
  int64_t rank = 0;
  for (double value : singular_values) {
    kept += value * value;
    ++rank;
    if (kept >= share * total) break;
  }
  return rank;
}

// Greedy: every direction costs the same 2 d parameters and brings its squared singular value.
std::vector<int64_t> SpendBudget(const std::vector<std::vector<double>>& singular_values, int64_t parameters,
                                 int64_t hidden) {
  const auto sites = static_cast<int64_t>(singular_values.size());
  int64_t left = parameters - sites * hidden;
  Check(left >= 0, "rank budget:{}: the biases of {} adapters alone take {} parameters", parameters, sites,
        sites * hidden);
  std::vector<int64_t> ranks(sites, 0);
  for (;;) {
    int64_t best = -1;
    double most = 0;
    for (int64_t s = 0; s < sites; ++s) {
      if (ranks[s] == hidden || singular_values[s][ranks[s]] <= most) continue;
      best = s;
      most = singular_values[s][ranks[s]];
    }
    // With factors (d, r) and (r, d) of r = d / 2 the full map costs no more.
    const int64_t cost = best < 0 ? 0 : std::min(2 * hidden, hidden * (hidden - 2 * ranks[best]));
    if (best < 0 || cost > left) return ranks;
    left -= cost;
    ranks[best] = 2 * (ranks[best] + 1) >= hidden ? hidden : ranks[best] + 1;
  }
}

}  // namespace

double FactorizeFlops(int64_t d) {
  constexpr double kProducts = 6, kTridiagonal = 4.0 / 3.0;
  return (kProducts + kTridiagonal) * std::pow(static_cast<double>(d), 3);
}

void CheckRank(const RankSpec& spec, int64_t hidden) {
  if (spec.kind == RankSpec::Kind::kFixed && (spec.rank < 1 || spec.rank > hidden))
    FailUsage(Field("rank"), "{}: expected 1 to {}, the hidden size, or full", spec.rank, hidden);
}

std::vector<int64_t> ChooseRanks(const RankSpec& spec, const std::vector<std::vector<double>>& singular_values,
                                 int64_t hidden) {
  const size_t sites = singular_values.size();
  switch (spec.kind) {
    case RankSpec::Kind::kFull: return std::vector<int64_t>(sites, hidden);
    case RankSpec::Kind::kFixed: return std::vector<int64_t>(sites, spec.rank);
    case RankSpec::Kind::kEnergy: {
      std::vector<int64_t> ranks;
      ranks.reserve(sites);
      for (const std::vector<double>& values : singular_values) ranks.push_back(RankOfEnergy(values, spec.energy));
      return ranks;
    }
    case RankSpec::Kind::kBudget: return SpendBudget(singular_values, spec.parameters, hidden);
  }
  return {};
}

LowRank LeadingFactors(const ToFactorize& map, int64_t rank) {
  return WithSolver(map.context, map.sums.hidden(), [&](Solver& solver) {
    Factorizing steps(map, rank);
    steps.Reduce(solver);
    steps.Decompose();
    return steps.Completed(steps.Finish(solver));
  });
}

std::unique_ptr<PendingFactors> PendingFactors::Start(const ToFactorize& map, int64_t rank) {
  auto steps = std::make_unique<Factorizing>(map, rank);
  if (!OnGpu(map, [&](Solver& solver) { steps->Reduce(solver); })) return nullptr;
  return std::make_unique<Decomposing>(std::move(steps));
}

LowRank Factorize(const Context& context, const RidgeSums& sums, const RidgeSolution& solution, int64_t rank,
                  Factorization factorization) {
  LowRank factors = LeadingFactors({context, sums, solution, factorization}, rank);
  CompleteSpectrum(factors.squares, factors.singular_values);
  return factors;
}

void CompleteSpectrum(const linalg::Tridiagonal& squares, std::vector<double>& singular_values) {
  std::vector<double> values = linalg::Eigenvalues(squares);
  std::reverse(values.begin(), values.end());
  for (size_t i = singular_values.size(); i < values.size(); ++i)
    singular_values.push_back(std::sqrt(std::max(0.0, values[i])));
}

linalg::Tridiagonal SquaredSpectrum(const ToFactorize& map) {
  return WithSolver(map.context, map.sums.hidden(), [&](Solver& solver) {
    const InMetric maps(solver, map.sums, map.solution.a, map.factorization);
    return WithoutReflectors(linalg::FiniteTridiagonal(solver, *maps.Squares(solver)));
  });
}

std::vector<double> SingularValues(const Context& context, const RidgeSums& sums, const RidgeSolution& solution,
                                   Factorization factorization) {
  std::vector<double> values;
  CompleteSpectrum(SquaredSpectrum({context, sums, solution, factorization}), values);
  return values;
}

LowRank Truncate(const Context& context, const RidgeSums& sums, const LowRank& factors, int64_t rank,
                 Factorization factorization) {
  const int64_t d = sums.hidden();
  Check(rank >= 0 && rank <= factors.p.cols(), "cannot cut factors of rank {} to rank {}", factors.p.cols(), rank);
  LowRank out{.p = Matrix<double>(d, rank),
              .q = Matrix<double>(rank, d),
              .bias_penalty = factors.bias_penalty,
              .singular_values = factors.singular_values,
              .squares = factors.squares};
  for (int64_t i = 0; i < d; ++i) std::copy_n(factors.p.row(i), rank, out.p.row(i));
  std::copy_n(factors.q.data(), rank * d, out.q.data());
  const bool keep_bias = factorization == Factorization::kSvd && rank > 0;
  out.b = keep_bias ? factors.b.Clone() : BestBias(context, sums, {out.p.view(), out.q.view()}, out.bias_penalty);
  return out;
}

double EffectiveRank(const std::vector<double>& singular_values) {
  double sum = 0, entropy = 0;
  for (double value : singular_values) sum += value;
  if (sum <= 0) return 0;
  for (double value : singular_values)
    if (value > 0) entropy -= value / sum * std::log(value / sum);
  return std::exp(entropy);
}

std::shared_ptr<const Lra> MakeLra(const RidgeSolution& solution) {
  auto lra = std::make_shared<Lra>();
  lra->a = Converted<float>(solution.a.host());
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

Matrix<double> DenseMap(const Context& context, const Lra& lra) {
  if (!lra.low_rank()) return Converted<double>(lra.a);
  Matrix<double> a(lra.hidden(), lra.hidden());
  linalg::Gemm(context, false, false, 1.0, Converted<double>(lra.p).view(), Converted<double>(lra.q).view(), 0.0,
               a.view());
  return a;
}

}  // namespace shiftrt
