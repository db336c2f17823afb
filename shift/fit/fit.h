// SPDX-License-Identifier: Apache-2.0
// From ridge sums to adapters: solve, choose the ranks, factorize.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/progress.h"
#include "shift/fit/factorize.h"
#include "shift/fit/recipe.h"
#include "shift/fit/ridge.h"
#include "shift/sums/sites.h"

namespace shiftrt {

struct FitOptions {
  RidgeOptions ridge;
  RankSpec rank;
  Factorization factorization = Factorization::kReducedRank;
  MetricKind metric = MetricKind::kIdentity;
  std::shared_ptr<const OutputMetrics> metrics = nullptr;  // null for kIdentity

  // Null where the metric is the identity.
  const OutputMetric* MetricOf(const Site& site) const;
};

struct SiteReport {
  Site site;
  std::string part;    // of a block that is healed: the projection that was fitted again, "o" or "down"
  int64_t tokens = 0;  // fitted
  double lambda = 0;
  int64_t rank = 0;
  // Of what the blocks add to the stream, by the correction as it runs, in the fit's token weights; NaN without
  // held-out text and for a correction that scales the stream, which has no sums.
  double r2_fit = 0, r2_heldout = 0;
  double condition = 0;  // of the regularised Gram
  double effective_rank = 0;
  // Of a correction that scales the stream: the mean factor over its coordinates. NaN for others.
  double scale = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> singular_values;  // as in LowRank
  std::string warning;
};

// Where the time of a fit went. Selecting layers is no part of a fit, but of the whole job.
struct StepSeconds {
  double select = 0, calibrate = 0, solve = 0, factorize = 0;

  StepSeconds& operator+=(const StepSeconds& more);
};

// What corrects some sites.
struct FittedSites {
  std::vector<std::shared_ptr<const Lra>> adapters;  // one per site, in the order given; null: none in its place
  std::vector<BlockStage> own;                       // kept blocks that get tensors of their own
  std::vector<SiteReport> reports;
  // Of a correction that chooses its recipe: what it tried, which of them this is, what it could not try and why, and
  // the plan, if that is not the original one with these adapters and blocks in it.
  std::vector<Trial> trials;
  size_t chosen_trial = 0;
  std::vector<std::string> untried;
  std::optional<DepthPlan> plan;
  StepSeconds seconds;

  FittedSites& operator+=(FittedSites more);  // of other sites
};
// The original plan of `layers` with `sites` corrected, or the plan that `fitted` has.
DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites, const FittedSites& fitted);

// Ridge solutions, and adapters made of them: apart, so that several factorizations share a solve.
struct SolvedSites {
  std::vector<RidgeSolution> solutions;
  double seconds = 0;
};
// The processes of the context deal the sites out; all of them return all fits.
SolvedSites SolveSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                       Progress& progress);
FittedSites ReduceSites(const Context& context, const std::vector<const SiteSums*>& sites, const SolvedSites& solved,
                        const FitOptions& options, Progress& progress);

// Both in one. Throws UsageError for a rank above the hidden size and what SolveRidge throws.
FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress);

// What `lra` leaves of a site's sums, beside the tokens they are of: rank, r2_fit and r2_heldout.
SiteReport MeasureSite(const Context& context, const SiteSums& site, const Lra& lra);
// 1 - residual / total of the adapter as it runs, float32 factors and all; NaN without tokens.
double RSquaredOf(const Context& context, const RidgeSums& sums, const Lra& lra);

}  // namespace shiftrt
