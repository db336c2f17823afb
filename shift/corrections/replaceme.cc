#include "shift/corrections/replaceme.h"

#include <limits>

#include "runtime/stopwatch.h"
#include "shift/corrections/fold.h"

namespace shiftrt {

// M T + Y - L = M T - (M + U) with U what the run adds to the stream, which the sums have as their target.
ReplaceMeResult FitReplaceMe(const Context& context, const Weights& weights, const std::vector<SiteSums>& sums,
                             const RidgeOptions& options, Progress& progress) {
  ReplaceMeResult result;
  std::vector<Site> runs;
  std::vector<std::shared_ptr<const BlockWeights>> folded;
  progress.Begin("solving", static_cast<int64_t>(sums.size()));
  for (const SiteSums& site : sums) {
    RidgeSolution solution;
    {
      const Stopwatch watch(result.seconds.solve);
      // There is no bias in T: about means of zero the free bias is zero.
      const RidgeAccumulator heldout = site.heldout.OntoOutputs().WithoutMeans();
      solution = SolveRidge(context, site.fit.OntoOutputs().WithoutMeans(), {options.lambda, false}, &heldout);
    }
    const Stopwatch watch(result.seconds.factorize);
    folded.push_back(FoldIntoDown(context, weights.blocks[site.layer - 1], solution.a.view()));
    runs.push_back(site);
    SiteReport report;
    static_cast<Site&>(report) = site;
    report.tokens = site.fit.tokens();
    report.lambda = solution.lambda;
    report.condition = solution.condition;
    report.warning = solution.warning;
    report.rank = site.fit.hidden();
    for (int64_t i = 0; i < solution.a.rows(); ++i) solution.a(i, i) -= 1.0;
    report.r2_fit = RSquared(context, site.fit, solution.a.view(), solution.b.view());
    report.r2_heldout = site.heldout.tokens() == 0
                            ? std::numeric_limits<double>::quiet_NaN()
                            : RSquared(context, site.heldout, solution.a.view(), solution.b.view());
    result.reports.push_back(std::move(report));
    progress.Advance(1);
  }
  progress.End();
  result.plan = FoldedPlan(weights.config.layers, runs, folded);
  return result;
}

}  // namespace shiftrt
