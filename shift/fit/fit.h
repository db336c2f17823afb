// SPDX-License-Identifier: Apache-2.0
// From ridge sums to adapters: solve, choose the ranks, factorize.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "include/shiftrt/provenance.h"
#include "include/shiftrt/recipe.h"
#include "runtime/progress.h"
#include "shift/fit/factorize.h"
#include "shift/fit/ridge.h"
#include "shift/sums/sites.h"

namespace shiftrt {

// The singular values of a fit's reports are computed at the end of the fit, by a later call of CompleteSpectra(), or
// only where they choose a rank.
enum class Spectra { kNow, kLater, kNever };

struct FitOptions {
  RidgeOptions ridge;
  RankSpec rank;
  Factorization factorization = Factorization::kReducedRank;
  Spectra spectra = Spectra::kNow;
};

// The settings of a fit, apart from the rank, that `--correction auto` varies between its trials.
struct FitRecipe {
  Calibration mode = Calibration::kIndependent;
  TokenWeights weighting;
  Factorization factorization = Factorization::kSvd;
  LambdaSpec lambda;
  std::string correction = "lra";  // or "refit" or "joint", which have neither mode nor factorization to choose
};

// The result of a fit by a recipe.
struct Trial {
  FitRecipe recipe;
  int64_t tokens = 0;      // fitted
  double loss = 0;         // on held-out text, nats per token
  double gain = 0;         // by which the loss is below that of the first trial
  double error = 0;        // standard error of `gain` over the held-out sequences; infinite for a single sequence
  int64_t parameters = 0;  // parameters of the adapters, which the recipe costs at run time

  // True if the gain is more than twice its standard error.
  bool clear() const { return gain > 2 * error; }
};

// The chosen one of some trials; null if there are none.
inline const TrialReport* ChosenOf(const std::vector<TrialReport>& trials) {
  const auto chosen = std::find_if(trials.begin(), trials.end(), [](const TrialReport& trial) { return trial.chosen; });
  return chosen == trials.end() ? nullptr : &*chosen;
}

// The members of an adapter, for runtime/messages.h.
inline auto FieldsOf(Lra& lra) { return std::tie(lra.a, lra.p, lra.q, lra.b, lra.norm); }

// The report of a site's fit, without layers and name, which FitsOf() adds. R2 is the share of what the blocks add to
// the stream that the correction explains as it runs, in the fit's token weights.
struct SiteReport : FitReport {
  Site site;
  linalg::Tridiagonal squares;  // as in LowRank, until CompleteSpectra()

  void Record(const RidgeSolution& solution) {
    lambda = solution.lambda;
    condition = solution.condition;
    warning = solution.warning;
  }
  friend auto FieldsOf(SiteReport& r) {
    return std::tie(r.site, r.part, r.tokens, r.lambda, r.rank, r.r2_fit, r.r2_heldout, r.condition, r.effective_rank,
                    r.scale, r.singular_values, r.squares.diagonal, r.squares.off_diagonal, r.warning);
  }
};
// The reports as a caller gets them.
std::vector<FitReport> FitsOf(const std::vector<SiteReport>& sites);

// Completes the singular values of all reports that lack some, each in one thread.
void CompleteSpectra(const Context& context, std::vector<SiteReport>& reports);

// Adds the seconds that the steps of a fit took. Selecting layers is no part of a fit, but of the whole job.
RepairSeconds& operator+=(RepairSeconds& seconds, const RepairSeconds& more);

// The corrections of some sites.
struct FittedSites {
  std::vector<std::shared_ptr<const Lra>> adapters;  // one per site, in the order given; null: none in its place
  std::vector<BlockStage> own;                       // kept blocks that get tensors of their own
  std::vector<SiteReport> reports;
  // A correction that chooses its recipe says what it tried, and what it could not try and why. It gives the plan, if
  // that is not the original one with these adapters and blocks in it.
  std::vector<TrialReport> trials;
  std::vector<std::string> untried;
  std::optional<DepthPlan> plan;
  RepairSeconds seconds;

  FittedSites& operator+=(FittedSites more);  // adds those of other sites
};
// The original plan of `layers` with `sites` corrected, or the plan that `fitted` has.
DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites, const FittedSites& fitted);

// Ridge solutions, and adapters made of them: apart, so that several factorizations share a solve. The sites are dealt
// out: a solution is there only where its sums are (WhereSumsAre), and every process gets all adapters. ReduceSites()
// takes the same sites as SolveSites().
struct SolvedSites {
  std::vector<RidgeSolution> solutions;
  double seconds = 0;
};
SolvedSites SolveSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                       Progress& progress);
FittedSites ReduceSites(const Context& context, const std::vector<const SiteSums*>& sites, const SolvedSites& solved,
                        const FitOptions& options, Progress& progress);

// Both in one. Throws UsageError for a rank above the hidden size and what SolveRidge throws.
FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress);

// Measures `lra` on a site's sums. The report has the site, the tokens, rank, r2_fit and r2_heldout.
SiteReport MeasureSite(const Context& context, const SiteSums& site, const Lra& lra);
// 1 - residual / total of the adapter as it runs, float32 factors and all; NaN without tokens.
double RSquaredOf(const Context& context, const RidgeSums& sums, const Lra& lra);

}  // namespace shiftrt
