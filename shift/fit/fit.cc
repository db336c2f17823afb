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
#include "shift/fit/messages.h"

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

// Who fits site i: the process that has its sums, or, where all have them, each in its turn.
auto OwnersOf(const Processes& processes, const std::vector<const SiteSums*>& sites) {
  return [&](int64_t i) { return sites[i]->holder >= 0 ? sites[i]->holder : processes.Owner(i); };
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
  Processes& processes = *context.processes;
  solved.solutions.resize(sites.size());
  const auto owner = OwnersOf(processes, sites);
  for (int64_t i = 0; i < std::ssize(sites); ++i) {
    if (owner(i) == processes.rank()) {
      solved.solutions[i] = SolveRidge(context, sites[i]->fit, options.ridge, &sites[i]->heldout);
      ++processes.work.fits;
    }
    progress.Advance(1);
  }
  progress.End();
  if (processes.split()) return solved;  // each stays with its sums
  processes.ShareOf(
      std::ssize(sites), owner, [&](Packer& out, int64_t i) { Put(out, solved.solutions[i]); },
      [&](Unpacker& in, int64_t i) { Get(in, solved.solutions[i]); });
  return solved;
}

FittedSites ReduceSites(const Context& context, const std::vector<const SiteSums*>& sites, const SolvedSites& solved,
                        const FitOptions& options, Progress& progress) {
  FittedSites fitted;
  fitted.seconds.solve = solved.seconds;
  const Stopwatch watch(fitted.seconds.factorize);
  Processes& processes = *context.processes;
  const auto owner = OwnersOf(processes, sites);
  std::vector<std::vector<double>> spectra(sites.size());
  if (RankNeedsSpectrum(options.rank)) {
    for (int64_t i = 0; i < std::ssize(sites); ++i)
      if (owner(i) == processes.rank())
        spectra[i] = SingularValues(context, sites[i]->fit, solved.solutions[i], options.factorization,
                                    options.MetricOf(sites[i]->site));
    processes.ShareOf(
        std::ssize(sites), owner, [&](Packer& out, int64_t i) { out.PutAll(spectra[i]); },
        [&](Unpacker& in, int64_t i) { spectra[i] = in.GetAll<double>(); });
  }
  const int64_t hidden = sites.empty() ? 0 : sites[0]->fit.hidden();
  const std::vector<int64_t> ranks = ChooseRanks(options.rank, spectra, hidden);
  progress.Begin("factorizing", static_cast<int64_t>(sites.size()));
  fitted.adapters.resize(sites.size());
  fitted.reports.resize(sites.size());
  for (int64_t i = 0; i < std::ssize(sites); ++i) {
    if (owner(i) == processes.rank()) {
      const RidgeSolution& solution = solved.solutions[i];
      fitted.adapters[i] = Reduce(context, *sites[i], solution, ranks[i], options, spectra[i]);
      SiteReport& report = fitted.reports[i] = MeasureSite(context, *sites[i], *fitted.adapters[i]);
      report.lambda = solution.lambda;
      report.condition = solution.condition;
      report.warning = solution.warning;
      report.singular_values = std::move(spectra[i]);
      report.effective_rank = EffectiveRank(report.singular_values);
    }
    progress.Advance(1);
  }
  progress.End();
  const auto put = [&](Packer& out, int64_t i) {
    Put(out, *fitted.adapters[i]);
    Put(out, fitted.reports[i]);
  };
  const auto get = [&](Unpacker& in, int64_t i) {
    Get(in, fitted.adapters[i]);
    Get(in, fitted.reports[i]);
    fitted.reports[i].site = sites[i]->site;
  };
  processes.ShareOf(std::ssize(sites), owner, put, get);
  return fitted;
}

FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress) {
  return ReduceSites(context, sites, SolveSites(context, sites, options, progress), options, progress);
}

}  // namespace shiftrt
