// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/fit.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "runtime/stopwatch.h"
#include "shift/fit/convert.h"

namespace shiftrt {

namespace {

bool RankNeedsSpectrum(const RankSpec& spec) {
  return spec.kind == RankSpec::Kind::kEnergy || spec.kind == RankSpec::Kind::kBudget;
}

// The adapter of `rank` directions, and all singular values.
std::shared_ptr<const Lra> Reduce(const Context& context, const SiteSums& site, const RidgeSolution& solution,
                                  int64_t rank, const FitOptions& options, std::vector<double>& singular_values) {
  const RidgeSums& sums = site.fit;
  const OutputMetric* metric = options.MetricOf(site.site);
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

}  // namespace

const OutputMetric* FitOptions::MetricOf(const Site& site) const {
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
  for (const SiteSums* site : sites) {
    solved.solutions.push_back(SolveRidge(context, site->fit, options.ridge, &site->heldout));
    progress.Advance(1);
  }
  progress.End();
  return solved;
}

FittedSites ReduceSites(const Context& context, const std::vector<const SiteSums*>& sites, const SolvedSites& solved,
                        const FitOptions& options, Progress& progress) {
  FittedSites fitted;
  fitted.seconds.solve = solved.seconds;
  const Stopwatch watch(fitted.seconds.factorize);
  std::vector<std::vector<double>> spectra(sites.size());
  for (size_t i = 0; i < sites.size() && RankNeedsSpectrum(options.rank); ++i)
    spectra[i] = SingularValues(context, sites[i]->fit, solved.solutions[i], options.factorization,
                                options.MetricOf(sites[i]->site));
  const int64_t hidden = sites.empty() ? 0 : sites[0]->fit.hidden();
  const std::vector<int64_t> ranks = ChooseRanks(options.rank, spectra, hidden);
  progress.Begin("factorizing", static_cast<int64_t>(sites.size()));
  for (size_t i = 0; i < sites.size(); ++i) {
    const RidgeSolution& solution = solved.solutions[i];
    const std::shared_ptr<const Lra> lra = Reduce(context, *sites[i], solution, ranks[i], options, spectra[i]);
    SiteReport report = MeasureSite(context, *sites[i], *lra);
    report.lambda = solution.lambda;
    report.condition = solution.condition;
    report.warning = solution.warning;
    report.singular_values = std::move(spectra[i]);
    report.effective_rank = EffectiveRank(report.singular_values);
    fitted.adapters.push_back(lra);
    fitted.reports.push_back(std::move(report));
    progress.Advance(1);
  }
  progress.End();
  return fitted;
}

FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress) {
  return ReduceSites(context, sites, SolveSites(context, sites, options, progress), options, progress);
}

}  // namespace shiftrt
