// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <cmath>
#include <numbers>

#include "runtime/check.h"

namespace shiftrt {

double Schedule::Rate(int64_t step, TrainedPart part) const {
  const double highest = rate * (part == TrainedPart::kAdapters ? adapters : part == TrainedPart::kHead ? head : 1);
  if (step < warmup) return highest * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  switch (decay) {
    case Decay::kConstant: break;
    case Decay::kLinear: return highest * (1 - done);
    case Decay::kCosine: return highest * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return highest;
}

int64_t WarmupSteps(double warmup, int64_t steps) {
  if (!std::isfinite(warmup) || warmup < 0 || (warmup >= 1 && warmup != std::floor(warmup)))
    FailUsage(Field("warmup"), "\"{}\" is neither a number of steps (100) nor a share of them (0.05)", warmup);
  if (warmup >= static_cast<double>(steps) && warmup >= 1)
    FailUsage(Field("warmup"), "{} steps of warm-up, but there are only {} steps", warmup, steps);
  return warmup < 1 ? std::llround(warmup * static_cast<double>(steps)) : static_cast<int64_t>(warmup);
}

}  // namespace shiftrt
