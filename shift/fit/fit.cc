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

// h W + b as h + h (W - I) + b.
std::shared_ptr<const Lra> AsResidual(const Context& context, const Lra& affine) {
  Matrix<double> a = DenseMap(context, affine);
  for (int64_t i = 0; i < a.rows(); ++i) a(i, i) -= 1.0;
  auto lra = std::make_shared<Lra>();
  lra->a = Converted<float>(a);
  lra->b = affine.b.Clone();
  return lra;
}

FittedSites FitBiases(const Context& context, const std::vector<const SiteSums*>& sites) {
  FittedSites fitted;
  for (const SiteSums* site : sites) {
    const int64_t d = site->fit.hidden();
    Check(site->fit.weight() > 0, "the mean update without a single token");
    fitted.adapters.push_back(MakeLra(LowRank{Matrix<double>(d, 0), Matrix<double>(0, d), site->fit.DeltaMean(), {}}));
    fitted.reports.push_back(MeasureSite(context, *site, *fitted.adapters.back()));
  }
  return fitted;
}

// Maps onto the blocks' outputs, fitted and truncated as such.
FittedSites FitGenericAffine(const Context& context, const std::vector<const SiteSums*>& sites, FitOptions options,
                             Progress& progress) {
  std::vector<SiteSums> outputs;
  for (const SiteSums* site : sites) outputs.emplace_back(*site, site->fit.OntoOutputs(), site->heldout.OntoOutputs());
  std::vector<const SiteSums*> onto;
  for (const SiteSums& site : outputs) onto.push_back(&site);
  options.correction = Correction::kLra;
  FittedSites fitted = FitSites(context, onto, options, progress);
  for (size_t i = 0; i < sites.size(); ++i) {
    fitted.adapters[i] = AsResidual(context, *fitted.adapters[i]);
    const SiteReport measured = MeasureSite(context, *sites[i], *fitted.adapters[i]);
    fitted.reports[i].r2_fit = measured.r2_fit;
    fitted.reports[i].r2_heldout = measured.r2_heldout;
  }
  return fitted;
}

}  // namespace

Correction ParseCorrection(const std::string& text) {
  for (Correction correction : {Correction::kLra, Correction::kGenericAffine, Correction::kBias, Correction::kReplaceMe,
                                Correction::kLaco, Correction::kNone, Correction::kAuto})
    if (text == Name(correction)) return correction;
  FailUsage("unknown correction \"{}\"; known: lra, generic-affine, bias, replaceme, laco, none, auto", text);
}

const char* Name(Correction correction) {
  switch (correction) {
    case Correction::kLra: return "lra";
    case Correction::kGenericAffine: return "generic-affine";
    case Correction::kBias: return "bias";
    case Correction::kReplaceMe: return "replaceme";
    case Correction::kLaco: return "laco";
    case Correction::kNone: return "none";
    case Correction::kAuto: return "auto";
  }
  return "?";
}

bool FitsAdapters(Correction correction) { return correction == Correction::kBias || HasRank(correction); }

bool HasRank(Correction correction) {
  return correction == Correction::kLra || correction == Correction::kGenericAffine || correction == Correction::kAuto;
}

FittedSites& FittedSites::operator+=(FittedSites more) {
  std::move(more.adapters.begin(), more.adapters.end(), std::back_inserter(adapters));
  std::move(more.reports.begin(), more.reports.end(), std::back_inserter(reports));
  seconds.solve += more.seconds.solve;
  seconds.factorize += more.seconds.factorize;
  return *this;
}

double RSquaredOf(const Context& context, const RidgeAccumulator& sums, const Lra& lra) {
  if (sums.tokens() == 0) return std::numeric_limits<double>::quiet_NaN();
  const Matrix<double> b = Converted<double>(lra.b);
  if (!lra.low_rank()) return RSquared(context, sums, Converted<double>(lra.a).view(), b.view());
  const Matrix<double> p = Converted<double>(lra.p), q = Converted<double>(lra.q);
  return RSquared(context, sums, {p.view(), q.view()}, b.view());
}

SiteReport MeasureSite(const Context& context, const SiteSums& site, const Lra& lra) {
  SiteReport report;
  static_cast<Site&>(report) = site;
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
    spectra[i] = SingularValues(context, sites[i]->fit, solved.solutions[i], options.factorization);
  const int64_t hidden = sites.empty() ? 0 : sites[0]->fit.hidden();
  const std::vector<int64_t> ranks = ChooseRanks(options.rank, spectra, hidden);
  progress.Begin("factorizing", static_cast<int64_t>(sites.size()));
  for (size_t i = 0; i < sites.size(); ++i) {
    const RidgeSolution& solution = solved.solutions[i];
    const std::shared_ptr<const Lra> lra = Reduce(context, sites[i]->fit, solution, ranks[i], options, spectra[i]);
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
  if (options.correction == Correction::kBias) return FitBiases(context, sites);
  if (options.correction == Correction::kGenericAffine) return FitGenericAffine(context, sites, options, progress);
  return ReduceSites(context, sites, SolveSites(context, sites, options, progress), options, progress);
}

}  // namespace shiftrt
