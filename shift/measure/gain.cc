// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/gain.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace shiftrt {

namespace {

double Total(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// The standard error of the sum of the differences over the sequences.
double PairedError(const std::vector<double>& first, const std::vector<double>& second) {
  const auto n = static_cast<double>(first.size());
  if (first.size() < 2) return std::numeric_limits<double>::infinity();
  const double mean = (Total(first) - Total(second)) / n;
  double squares = 0;
  for (size_t i = 0; i < first.size(); ++i) squares += std::pow(first[i] - second[i] - mean, 2);
  return std::sqrt(squares / (n - 1) * n);
}

}  // namespace

GainReport MeasureGain(const RepairPlans& plans, HeldOutLoss& loss, Progress& progress) {
  constexpr int64_t kModels = 3;
  progress.Begin("measuring what the repair gains", kModels);
  const auto measure = [&](const DepthPlan& plan) {
    std::vector<double> losses = loss.BySequence(plan);
    progress.Advance(1);
    return losses;
  };
  const double original = Total(measure(plans.original));
  const std::vector<double> pruned = measure(plans.pruned);
  const std::vector<double> corrected = plans.corrected == plans.pruned ? pruned : measure(plans.corrected);
  progress.End();
  const auto tokens = static_cast<double>(loss.predicted());
  return {.tokens = loss.predicted(),
          .original = original / tokens,
          .pruned = Total(pruned) / tokens,
          .corrected = Total(corrected) / tokens,
          .gain = (Total(pruned) - Total(corrected)) / tokens,
          .error = PairedError(pruned, corrected) / tokens};
}

}  // namespace shiftrt
