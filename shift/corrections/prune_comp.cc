// SPDX-License-Identifier: Apache-2.0
// Prune&Comp (Chen et al., 2025): the stream in the place of a removed run is multiplied by one number, the mean over
// sequences and channels of the ratio of the mean absolute values after the run and before it. The number is folded
// into the weights, so that nothing is added to the model.
#include "shift/corrections/scaling.h"

namespace shiftrt {

FittedSites FitPruneComp(const FitInput& input) {
  const Weights& weights = *input.job.model.weights;
  FittedSites fitted;
  fitted.adapters.resize(input.sites.size());
  MeasureRatios(input, nullptr, fitted);
  std::vector<Cut> cuts;
  for (const SiteReport& report : fitted.reports) cuts.push_back({report.site.layer, report.scale});
  fitted.own = DividedAfter(weights, CorrectedPlan(input.job.layers(), input.sites, fitted.adapters), cuts);
  return fitted;
}

}  // namespace shiftrt
