// From accumulators to adapters: solve, choose the ranks, factorize.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/progress.h"
#include "shift/fit/factorize.h"
#include "shift/fit/ridge.h"
#include "shift/sums/sites.h"
#include "shift/sums/statistics.h"
#include "shift/text/token_weights.h"

namespace shiftrt {

enum class SiteInput {
  kStream,     // the residual stream before the site: what an adapter reads
  kMlpBefore,  // the MLP's output of the block before the site: what ReplaceMe maps
};

// What was collected at one site: its inputs against what its blocks add to the stream.
struct SiteSums : Site {
  RidgeAccumulator fit, heldout;  // of the fitted tokens, and of those held out (none: heldout.tokens() == 0)
  SiteInput input = SiteInput::kStream;
  TokenWeighting weighting;

  static int64_t Bytes(int64_t hidden) { return 2 * RidgeAccumulator::Bytes(hidden); }
  SiteSums(const Site& site, int64_t hidden, SiteInput input = SiteInput::kStream)
      : Site(site), fit(hidden), heldout(hidden), input(input) {}
  SiteSums(const Site& site, RidgeAccumulator fit, RidgeAccumulator heldout)
      : Site(site), fit(std::move(fit)), heldout(std::move(heldout)) {}
};

// What stands in a removed block's place (docs/method.md).
enum class Correction {
  kLra,            // h += h A + b, fitted to the block's update
  kGenericAffine,  // h = h W + b, fitted to the block's output and truncated as such
  kBias,           // the mean update
  kReplaceMe,      // a map of the MLP's output before, folded into its down projection
  kLaco,           // the differences of the removed blocks' weights, folded into the block before
  kNone,
  kAuto,  // kLra by the recipe with the lowest held-out loss (shift/corrections/automatic.h)
};
// "lra", "generic-affine", "bias", "replaceme", "laco", "none", "auto". Throws UsageError for anything else.
Correction ParseCorrection(const std::string& text);
const char* Name(Correction correction);
// Whether adapters stand in the removed blocks' place; and whether those have a rank.
bool FitsAdapters(Correction correction);
bool HasRank(Correction correction);

struct FitOptions {
  Correction correction = Correction::kLra;
  RidgeOptions ridge;
  RankSpec rank;
  Factorization factorization = Factorization::kReducedRank;
};

struct SiteReport : Site {
  int64_t tokens = 0;  // fitted
  double lambda = 0;
  int64_t rank = 0;
  // Of what the blocks add to the stream, by the correction as it runs, in the fit's token weights; NaN without
  // held-out text.
  double r2_fit = 0, r2_heldout = 0;
  double condition = 0;  // of the regularised Gram
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

  FittedSites& operator+=(FittedSites more);
};

// Ridge solutions, and adapters made of them: apart, so that several factorizations share a solve. kLra alone.
struct SolvedSites {
  std::vector<RidgeSolution> solutions;
  double seconds = 0;
};
SolvedSites SolveSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                       Progress& progress);
FittedSites ReduceSites(const Context& context, const std::vector<const SiteSums*>& sites, const SolvedSites& solved,
                        const FitOptions& options, Progress& progress);

// Both in one. Adapters: of kLra, kGenericAffine (as a full A = W - I, whatever the rank of W) or kBias. Throws
// UsageError for a rank above the hidden size and what SolveRidge throws.
FittedSites FitSites(const Context& context, const std::vector<const SiteSums*>& sites, const FitOptions& options,
                     Progress& progress);

// What `lra` leaves of a site's sums, beside the tokens they are of: rank, r2_fit and r2_heldout.
SiteReport MeasureSite(const Context& context, const SiteSums& site, const Lra& lra);
// 1 - residual / total of the adapter as it runs, float32 factors and all; NaN without tokens.
double RSquaredOf(const Context& context, const RidgeAccumulator& sums, const Lra& lra);

}  // namespace shiftrt
