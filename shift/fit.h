// From accumulators to adapters: solve, choose the ranks, factorize.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/progress.h"
#include "shift/factorize.h"
#include "shift/ridge.h"
#include "shift/statistics.h"

namespace shiftrt {

// What was collected at one site.
struct SiteSums {
  int64_t layer = 0;
  RidgeAccumulator fit, heldout;  // of the fitted tokens, and of those held out (none: heldout.tokens() == 0)
};

struct FitOptions {
  RidgeOptions ridge;
  RankSpec rank;
  Factorization factorization = Factorization::kReducedRank;
};

struct SiteReport {
  int64_t layer = 0;
  int64_t tokens = 0;  // fitted
  double lambda = 0;
  int64_t rank = 0;
  double r2_fit = 0, r2_heldout = 0;  // of the adapter as it runs; NaN without held-out text
  double condition = 0;               // of the regularised Gram
  double effective_rank = 0;
  std::vector<double> singular_values;  // as in LowRank
  std::string warning;
};

struct FitSeconds {
  double solve = 0, factorize = 0;
};

struct FittedSites {
  std::vector<std::shared_ptr<const Lra>> adapters;  // one a site, in the order given
  std::vector<SiteReport> reports;
  FitSeconds seconds;
};

// Throws UsageError for a rank above the hidden size and what SolveRidge throws.
FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress);

// 1 - residual / total of the adapter as it runs, float32 factors and all; NaN without tokens.
double RSquaredOf(const Context& context, const RidgeAccumulator& sums, const Lra& lra);

}  // namespace shiftrt
