// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/gain.h"

#include <numeric>
#include <vector>

namespace shiftrt {

namespace {

double Total(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

GainReport MeasureGain(const RepairPlans& plans, HeldOutLoss& loss, Progress& progress, OtherChoice* other) {
  progress.Begin("measuring what the repair gains", other == nullptr ? 3 : 4);
  const auto measure = [&](const DepthPlan& plan) {
    std::vector<double> losses = loss.BySequence(plan);
    progress.Advance(1);
    return losses;
  };
  const double original = Total(measure(plans.original));
  const std::vector<double> pruned = measure(plans.pruned);
  const std::vector<double> corrected = plans.corrected == plans.pruned ? pruned : measure(plans.corrected);
  const auto tokens = static_cast<double>(loss.predicted());
  if (other != nullptr) {
    const std::vector<double> there = measure(DepthPlan::Pruned(std::ssize(plans.original.stages), other->removed));
    const PairedGain gain = GainOver(pruned, there, loss.predicted());
    other->pruned = Total(there) / tokens;
    other->gain = gain.gain;
    other->error = gain.error;
  }
  progress.End();
  const PairedGain gain = GainOver(pruned, corrected, loss.predicted());
  return {.tokens = loss.predicted(),
          .original = original / tokens,
          .pruned = Total(pruned) / tokens,
          .corrected = Total(corrected) / tokens,
          .gain = gain.gain,
          .error = gain.error};
}

}  // namespace shiftrt
