// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <cmath>
#include <numbers>

#include "runtime/check.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

constexpr Words<Decay, 3> kDecays = {{"constant", "linear", "cosine"}};

}  // namespace

const char* Name(Decay decay) { return kDecays.Of(decay); }

Decay ParseDecay(const std::string& name) { return kDecays.Parse(name, "schedule", "\"{}\" is not a schedule"); }

double Schedule::Rate(int64_t step) const {
  if (step < warmup) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  switch (decay) {
    case Decay::kConstant: break;
    case Decay::kLinear: return rate * (1 - done);
    case Decay::kCosine: return rate * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return rate;
}

int64_t WarmupSteps(double warmup, int64_t steps) {
  if (!std::isfinite(warmup) || warmup < 0 || (warmup >= 1 && warmup != std::floor(warmup)))
    FailUsage(Field("warmup"), "\"{}\" is neither a number of steps (100) nor a share of them (0.05)", warmup);
  if (warmup >= static_cast<double>(steps) && warmup >= 1)
    FailUsage(Field("warmup"), "{} steps of warm-up, but there are only {} steps", warmup, steps);
  return warmup < 1 ? std::llround(warmup * static_cast<double>(steps)) : static_cast<int64_t>(warmup);
}

}  // namespace shiftrt
