// SPDX-License-Identifier: Apache-2.0
// Ghosted Layers (arXiv 2605.15491, 2026): h += h M in the place of a removed run, M = argmin |X M - (Y - X)|^2 + 1e-6
// |M|^2, X and Y the original stream before and after the run. No bias, and nothing is taken about the means.
#include <utility>

#include "runtime/stopwatch.h"
#include "shift/corrections/corrections.h"

namespace shiftrt {

namespace {

constexpr double kGhostedLambda = 1e-6;

}  // namespace

FittedSites FitGhosted(const FitInput& input) {
  const auto& [job, sites, sums, options, projection, before] = input;
  FittedSites fitted;
  const Stopwatch watch(fitted.seconds.solve);
  job.progress.Begin("solving", static_cast<int64_t>(sums.size()));
  for (const SiteSums* site : sums) {
    // About means of zero the free bias is zero.
    const RidgeSolution solution =
        SolveRidge(job.context, site->fit.WithoutMeans(), {{LambdaSpec::Kind::kAbsolute, kGhostedLambda}, false});
    fitted.adapters.push_back(MakeLra(solution));
    SiteReport report = MeasureSite(job.context, *site, *fitted.adapters.back());
    report.Record(solution);
    fitted.reports.push_back(std::move(report));
    job.progress.Advance(1);
  }
  job.progress.End();
  return fitted;
}

}  // namespace shiftrt
