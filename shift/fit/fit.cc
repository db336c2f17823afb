// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/fit.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "runtime/check.h"
#include "runtime/parallel.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"
#include "shift/fit/convert.h"

namespace shiftrt {

namespace {

bool RankNeedsSpectrum(const RankSpec& spec) {
  return spec.kind == RankSpec::Kind::kEnergy || spec.kind == RankSpec::Kind::kBudget;
}

// The factors of one site after another. On a GPU, the host's part of a site runs during the device's part of the next.
class Factorizer {
 public:
  // Receives the factors of item i.
  using Done = std::function<void(int64_t i, LowRank factors)>;
  explicit Factorizer(Done done) : done_(std::move(done)) {}

  void Take(int64_t i, const ToFactorize& map, int64_t rank) {
    std::unique_ptr<PendingFactors> next = PendingFactors::Start(map, rank);
    const bool waited = pending_ != nullptr;
    Flush();
    if (next == nullptr && waited) next = PendingFactors::Start(map, rank);  // there is more memory
    if (next == nullptr) return done_(i, LeadingFactors(map, rank));
    pending_ = std::move(next);
    item_ = i;
  }
  // Finishes the last one.
  void Flush() {
    if (pending_ == nullptr) return;
    LowRank factors = pending_->Finish();
    pending_.reset();
    done_(item_, std::move(factors));
  }

 private:
  Done done_;
  std::unique_ptr<PendingFactors> pending_;
  int64_t item_ = 0;
};

SharedItems WhereSumsAre(const Context& context, const std::vector<const SiteSums*>& sites) {
  std::vector<const RidgeMatrices*> sums;
  sums.reserve(sites.size());
  for (const SiteSums* const site : sites) sums.push_back(&site->fit.matrices());
  return shiftrt::WhereSumsAre(context, sums);
}

}  // namespace

std::vector<FitReport> FitsOf(const std::vector<SiteReport>& sites) {
  std::vector<FitReport> fits(sites.begin(), sites.end());
  for (size_t i = 0; i < fits.size(); ++i) {
    fits[i].layers = sites[i].site.Parts();
    fits[i].name = sites[i].site.Name();
  }
  return fits;
}

void CompleteSpectra(const Context& context, std::vector<SiteReport>& reports) {
  ParallelForEach(context, std::ssize(reports), [&](int64_t i) {
    SiteReport& report = reports[i];
    if (report.squares.size() == 0) return;
    CompleteSpectrum(std::exchange(report.squares, {}), report.singular_values);
    report.effective_rank = EffectiveRank(report.singular_values);
  });
}

FittedSites& FittedSites::operator+=(FittedSites more) {
  std::move(more.adapters.begin(), more.adapters.end(), std::back_inserter(adapters));
  std::move(more.own.begin(), more.own.end(), std::back_inserter(own));
  std::move(more.reports.begin(), more.reports.end(), std::back_inserter(reports));
  seconds += more.seconds;
  return *this;
}

RepairSeconds& operator+=(RepairSeconds& seconds, const RepairSeconds& more) {
  seconds.select += more.select;
  seconds.calibrate += more.calibrate;
  seconds.solve += more.solve;
  seconds.factorize += more.factorize;
  seconds.quantise += more.quantise;
  return seconds;
}

DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites, const FittedSites& fitted) {
  if (fitted.plan) return *fitted.plan;
  DepthPlan plan = CorrectedPlan(layers, sites, fitted.adapters);
  for (const BlockStage& block : fitted.own) plan = plan.With(plan.StageOf(block.layer), block);
  return plan;
}

double RSquaredOf(const Context& context, const RidgeSums& sums, const Lra& lra) {
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
                        const FitOptions& options, Progress& progress) {
  FittedSites fitted;
  fitted.seconds.solve = solved.seconds;
  const Stopwatch watch(fitted.seconds.factorize);
  const SharedItems items = WhereSumsAre(context, sites);
  std::vector<std::vector<double>> spectra(sites.size());
  std::vector<linalg::Tridiagonal> squares(sites.size());  // for spectra that are completed later
  if (RankNeedsSpectrum(options.rank)) {
    items.ForEach([&](int64_t i) {
      spectra[i] = SingularValues(context, sites[i]->fit, solved.solutions[i], options.factorization);
    });
    items.Share(spectra);
  }
  const int64_t hidden = sites.empty() ? 0 : sites[0]->fit.hidden();
  const std::vector<int64_t> ranks = ChooseRanks(options.rank, spectra, hidden);
  progress.Begin("factorizing", static_cast<int64_t>(sites.size()));
  fitted.adapters.resize(sites.size());
  fitted.reports.resize(sites.size());
  const auto measure = [&](int64_t i) {
    SiteReport& report = fitted.reports[i] = MeasureSite(context, *sites[i], *fitted.adapters[i]);
    report.Record(solved.solutions[i]);
    if (options.spectra == Spectra::kNever) return;
    report.singular_values = std::move(spectra[i]);
    report.squares = std::move(squares[i]);
    if (report.squares.size() == 0) report.effective_rank = EffectiveRank(report.singular_values);
  };
  Factorizer factorizer([&](int64_t i, LowRank factors) {
    // Those after the leading ones may be known.
    const auto found = std::ssize(factors.singular_values);
    if (found < std::ssize(spectra[i]))
      factors.singular_values.insert(factors.singular_values.end(), spectra[i].begin() + found, spectra[i].end());
    spectra[i] = factors.singular_values;
    if (options.spectra != Spectra::kNever && std::ssize(spectra[i]) < hidden) squares[i] = factors.squares;
    if (ranks[i] == 0) factors = Truncate(context, sites[i]->fit, factors, 0, options.factorization);
    fitted.adapters[i] = MakeLra(factors);
    measure(i);
  });
  const auto reduce = [&](int64_t i) {
    const RidgeSolution& solution = solved.solutions[i];
    const ToFactorize map = {context, sites[i]->fit, solution, options.factorization};
    // Asked for by number, a rank of d is factors of rank d; otherwise the full map is the smaller way to say it.
    if (ranks[i] < hidden || options.rank.kind == RankSpec::Kind::kFixed)
      return factorizer.Take(i, map, std::max<int64_t>(1, ranks[i]));
    if (spectra[i].empty() && options.spectra != Spectra::kNever) squares[i] = SquaredSpectrum(map);
    fitted.adapters[i] = MakeLra(solution);
    measure(i);
  };
  items.ForEach(reduce, [&](int64_t, int64_t) { progress.Advance(1); });
  factorizer.Flush();
  if (options.spectra == Spectra::kNow) CompleteSpectra(context, fitted.reports);
  progress.End();
  items.Share(fitted.adapters);
  items.Share(fitted.reports);
  return fitted;
}

FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress) {
  return ReduceSites(context, sites, SolveSites(context, sites, options, progress), options, progress);
}

}  // namespace shiftrt
