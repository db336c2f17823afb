#include "shift/fit.h"

#include <limits>
#include <utility>

#include "runtime/linalg.h"
#include "runtime/stopwatch.h"
#include "shift/convert.h"

namespace shiftrt {

namespace {

bool RankNeedsSpectrum(const RankSpec& spec) {
  return spec.kind == RankSpec::Kind::kEnergy || spec.kind == RankSpec::Kind::kBudget;
}

// The adapter of `rank` directions, and all singular values.
std::shared_ptr<const Lra> Reduce(const Context& context, const RidgeAccumulator& sums, const RidgeSolution& solution,
                                  int64_t rank, const FitOptions& options, std::vector<double>& singular_values) {
  // Asked for by number, a rank of d is factors of rank d; otherwise the full map is the smaller way to say it.
  if (rank == sums.hidden() && options.rank.kind != RankSpec::Kind::kFixed) {
    if (singular_values.empty()) singular_values = SingularValues(context, sums, solution, options.factorization);
    return MakeLra(solution);
  }
  LowRank factors = Factorize(context, sums, solution, std::max<int64_t>(1, rank), options.factorization);
  if (rank == 0) factors = Truncate(context, sums, factors, 0, options.factorization);
  singular_values = std::move(factors.singular_values);
  return MakeLra(factors);
}

}  // namespace

double RSquaredOf(const Context& context, const RidgeAccumulator& sums, const Lra& lra) {
  if (sums.tokens() == 0) return std::numeric_limits<double>::quiet_NaN();
  Matrix<double> a = Converted<double>(lra.a);
  if (lra.low_rank()) {
    a = Matrix<double>::Zeros(lra.hidden(), lra.hidden());
    if (lra.rank() > 0)
      linalg::Gemm(context, false, false, 1.0, Converted<double>(lra.p).view(), Converted<double>(lra.q).view(), 0.0,
                   a.view());
  }
  return RSquared(context, sums, a.view(), Converted<double>(lra.b).view());
}

FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress) {
  FittedSites fitted;
  std::vector<RidgeSolution> solutions;
  std::vector<std::vector<double>> spectra(sites.size());
  progress.Begin("solving", 2 * static_cast<int64_t>(sites.size()));
  for (size_t i = 0; i < sites.size(); ++i) {
    {
      const Stopwatch watch(fitted.seconds.solve);
      solutions.push_back(SolveRidge(context, sites[i]->fit, options.ridge, &sites[i]->heldout));
    }
    const Stopwatch watch(fitted.seconds.factorize);
    if (RankNeedsSpectrum(options.rank))
      spectra[i] = SingularValues(context, sites[i]->fit, solutions[i], options.factorization);
    progress.Advance(1);
  }
  const int64_t hidden = sites.empty() ? 0 : sites[0]->fit.hidden();
  const std::vector<int64_t> ranks = ChooseRanks(options.rank, spectra, hidden);
  for (size_t i = 0; i < sites.size(); ++i) {
    const RidgeAccumulator& sums = sites[i]->fit;
    SiteReport report;
    const Stopwatch watch(fitted.seconds.factorize);
    const std::shared_ptr<const Lra> lra = Reduce(context, sums, solutions[i], ranks[i], options, spectra[i]);
    report.layer = sites[i]->layer;
    report.tokens = sums.tokens();
    report.lambda = solutions[i].lambda;
    report.condition = solutions[i].condition;
    report.warning = solutions[i].warning;
    report.rank = lra->rank();
    report.r2_fit = RSquaredOf(context, sums, *lra);
    report.r2_heldout = RSquaredOf(context, sites[i]->heldout, *lra);
    report.singular_values = std::move(spectra[i]);
    report.effective_rank = EffectiveRank(report.singular_values);
    fitted.adapters.push_back(lra);
    fitted.reports.push_back(std::move(report));
    progress.Advance(1);
  }
  progress.End();
  return fitted;
}

}  // namespace shiftrt
