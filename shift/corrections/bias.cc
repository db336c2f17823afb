// SPDX-License-Identifier: Apache-2.0
// Baseline: the mean update, an adapter of rank 0.
#include "runtime/check.h"
#include "shift/corrections/corrections.h"

namespace shiftrt {

FittedSites FitBias(const FitInput& input) {
  FittedSites fitted;
  for (const SiteSums* site : input.sums) {
    const int64_t d = site->fit.hidden();
    Check(site->fit.weight() > 0, "the mean update without a single token");
    fitted.adapters.push_back(
        MakeLra(LowRank{.p = Matrix<double>(d, 0), .q = Matrix<double>(0, d), .b = site->fit.DeltaMean()}));
    fitted.reports.push_back(MeasureSite(input.job.context, *site, *fitted.adapters.back()));
  }
  return fitted;
}

}  // namespace shiftrt
