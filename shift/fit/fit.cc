// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/fit.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"
#include "shift/fit/convert.h"

namespace shiftrt {

namespace {

bool RankNeedsSpectrum(const RankSpec& spec) {
  return spec.kind == RankSpec::Kind::kEnergy || spec.kind == RankSpec::Kind::kBudget;
}

// The adapter of `rank` directions, and all singular values.
std::shared_ptr<const Lra> Reduce(const Context& context, const RidgeSums& sums, const RidgeSolution& solution,
                                  int64_t rank, const FitOptions& options, const OutputMetric* metric,
                                  std::vector<double>& singular_values) {
  // Asked for by number, a rank of d is factors of rank d; otherwise the full map is the smaller way to say it.
  if (rank == sums.hidden() && options.rank.kind != RankSpec::Kind::kFixed) {
    if (singular_values.empty())
      singular_values = SingularValues(context, sums, solution, options.factorization, metric);
    return MakeLra(solution);
  }
  LowRank factors = Factorize(context, sums, solution, std::max<int64_t>(1, rank), options.factorization, metric);
  if (rank == 0) factors = Truncate(context, sums, factors, 0, options.factorization);
  singular_values = std::move(factors.singular_values);
  return MakeLra(factors);
}

SharedItems WhereSumsAre(const Context& context, const std::vector<const SiteSums*>& sites) {
  std::vector<const RidgeMatrices*> sums;
  for (const SiteSums* const site : sites) sums.push_back(&site->fit.matrices());
  return shiftrt::WhereSumsAre(context, sums);
}

}  // namespace

const OutputMetric* MetricOf(const OutputMetrics* metrics, const Site& site) {
  return metrics == nullptr ? nullptr : &metrics->at(site.last());
}

FittedSites& FittedSites::operator+=(FittedSites more) {
  std::move(more.adapters.begin(), more.adapters.end(), std::back_inserter(adapters));
  std::move(more.own.begin(), more.own.end(), std::back_inserter(own));
  std::move(more.reports.begin(), more.reports.end(), std::back_inserter(reports));
  seconds += more.seconds;
  return *this;
}

StepSeconds& StepSeconds::operator+=(const StepSeconds& more) {
  select += more.select;
  calibrate += more.calibrate;
  solve += more.solve;
  factorize += more.factorize;
  return *this;
}

DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites, const FittedSites& fitted) {
  if (fitted.plan) return *fitted.plan;
  DepthPlan plan = CorrectedPlan(layers, sites, fitted.adapters);
  for (const BlockStage& block : fitted.own) plan = plan.With(plan.StageOf(block.layer), block);
  return plan;
}

double RSquaredOf(const Context& context, const RidgeSums& sums, const Lra& lra) {
  if (sums.tokens() == 0) return std::numeric_limits<double>::quiet_NaN();
  const Matrix<double> b = Converted<double>(lra.b);
  if (!lra.low_rank()) return RSquared(context, sums, Converted<double>(lra.a).view(), b.view());
  const Matrix<double> p = Converted<double>(lra.p), q = Converted<double>(lra.q);
  return RSquared(context, sums, {p.view(), q.view()}, b.view());
}

SiteReport MeasureSite(const Context& context, const SiteSums& site, const Lra& lra) {
  SiteReport report;
  report.site = site.site;
  report.tokens = site.fit.tokens();
  report.rank = lra.rank();
  report.r2_fit = RSquaredOf(context, site.fit, lra);
  report.r2_heldout = RSquaredOf(context, site.heldout, lra);
  return report;
}

SolvedSites SolveSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                       Progress& progress) {
  SolvedSites solved;
  const Stopwatch watch(solved.seconds);
  progress.Begin("solving", static_cast<int64_t>(sites.size()));
  solved.solutions.resize(sites.size());
  const auto solve = [&](int64_t i) {
    solved.solutions[i] = SolveRidge(context, sites[i]->fit, options.ridge, &sites[i]->heldout);
    CountFit(context);
  };
  WhereSumsAre(context, sites).ForEach(solve, [&](int64_t, int64_t) { progress.Advance(1); });
  progress.End();
  return solved;
}

FittedSites ReduceSites(const Context& context, const std::vector<const SiteSums*>& sites, const SolvedSites& solved,
                        const FitOptions& options, const OutputMetrics* metrics, Progress& progress) {
  FittedSites fitted;
  fitted.seconds.solve = solved.seconds;
  const Stopwatch watch(fitted.seconds.factorize);
  const SharedItems items = WhereSumsAre(context, sites);
  std::vector<std::vector<double>> spectra(sites.size());
  if (RankNeedsSpectrum(options.rank)) {
    items.ForEach([&](int64_t i) {
      spectra[i] = SingularValues(context, sites[i]->fit, solved.solutions[i], options.factorization,
                                  MetricOf(metrics, sites[i]->site));
    });
    items.Share(spectra);
  }
  const int64_t hidden = sites.empty() ? 0 : sites[0]->fit.hidden();
  const std::vector<int64_t> ranks = ChooseRanks(options.rank, spectra, hidden);
  progress.Begin("factorizing", static_cast<int64_t>(sites.size()));
  fitted.adapters.resize(sites.size());
  fitted.reports.resize(sites.size());
  const auto reduce = [&](int64_t i) {
    const RidgeSolution& solution = solved.solutions[i];
    fitted.adapters[i] =
        Reduce(context, sites[i]->fit, solution, ranks[i], options, MetricOf(metrics, sites[i]->site), spectra[i]);
    SiteReport& report = fitted.reports[i] = MeasureSite(context, *sites[i], *fitted.adapters[i]);
    report.lambda = solution.lambda;
    report.condition = solution.condition;
    report.warning = solution.warning;
    report.singular_values = std::move(spectra[i]);
    report.effective_rank = EffectiveRank(report.singular_values);
  };
  items.ForEach(reduce, [&](int64_t, int64_t) { progress.Advance(1); });
  progress.End();
  items.Share(fitted.adapters);
  items.Share(fitted.reports);
  return fitted;
}

FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress, const OutputMetrics* metrics) {
  return ReduceSites(context, sites, SolveSites(context, sites, options, progress), options, metrics, progress);
}

}  // namespace shiftrt
