// SPDX-License-Identifier: Apache-2.0
// ReplaceMe (Shopkhoev et al., 2025), the L2 form: a linear map after the MLP of the block before a removed run,
// folded into its down projection. T = argmin |M T + Y - L|^2 + lambda |T|^2 for each run: Y the stream after the
// attention of the block before, M that block's MLP output, L the stream after the run, all of the original model.
#include "runtime/stopwatch.h"
#include "shift/corrections/corrections.h"
#include "shift/refit/fold.h"

namespace shiftrt {

// M T + Y - L = M T - (M + U) with U what the run adds to the stream, which the sums have as their target. The reports
// measure what the run adds to the stream by T - I, as an adapter would be measured.
FittedSites FitReplaceMe(const FitInput& input) {
  const auto& [job, sites, sums, options, projection, none] = input;
  FittedSites fitted;
  fitted.adapters.resize(sites.size());
  job.progress.Begin("solving", static_cast<int64_t>(sums.size()));
  for (const SiteSums* site : sums) {
    RidgeSolution solution;
    {
      const Stopwatch watch(fitted.seconds.solve);
      // There is no bias in T: about means of zero the free bias is zero.
      const RidgeSums heldout = site->heldout.OntoOutputs().WithoutMeans();
      solution =
          SolveRidge(job.context, site->fit.OntoOutputs().WithoutMeans(), {options.ridge.lambda, false}, &heldout);
    }
    const Stopwatch watch(fitted.seconds.factorize);
    const int64_t before = site->site.layer - 1;
    fitted.own.push_back(
        {.layer = before,
         .own = FoldIntoDown(job.context, job.model.weights->blocks[before], solution.a.host().view())});
    SiteReport report;
    report.site = site->site;
    report.tokens = site->fit.tokens();
    report.Record(solution);
    report.rank = site->fit.hidden();
    const Matrix<double>& change = solution.a.ToWrite();
    for (int64_t i = 0; i < change.rows(); ++i) change(i, i) -= 1.0;
    report.r2_fit = RSquared(job.context, site->fit, change.view(), solution.b.view());
    report.r2_heldout = RSquared(job.context, site->heldout, change.view(), solution.b.view());
    fitted.reports.push_back(std::move(report));
    job.progress.Advance(1);
  }
  job.progress.End();
  return fitted;
}

}  // namespace shiftrt
