// SPDX-License-Identifier: Apache-2.0
// The last projection before a removed run (of an MLP, or of an attention whose own MLP is removed), fitted again so
// that its output carries what the run added to the stream: no change of architecture, and nothing at run time.
#include "runtime/stopwatch.h"
#include "shift/corrections/corrections.h"
#include "shift/refit/projection.h"

namespace shiftrt {

FittedSites FitRefit(const FitInput& input) {
  const auto& [job, sites, sums, options, projection, before] = input;
  FittedSites fitted;
  const Stopwatch watch(fitted.seconds.solve);
  RefittedBlock refitted = RefitProjection(job.context, *sums.front(), options.ridge, *projection, before);
  fitted.adapters.resize(1);
  fitted.own = {{.layer = BlockPart::At(sites.front().begin() - 1).layer, .own = std::move(refitted.block)}};
  fitted.reports = {std::move(refitted.report)};
  return fitted;
}

}  // namespace shiftrt
