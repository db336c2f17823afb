// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <cmath>
#include <numbers>

#include "runtime/check.h"
#include "runtime/parse.h"
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

int64_t ParseWarmup(const std::string& text, int64_t steps) {
  double value = 0;
  if (!ParseNumber(text, &value) || !std::isfinite(value) || value < 0 || (value >= 1 && value != std::floor(value)))
    FailUsage(Field("warmup"), "\"{}\" is neither a number of steps (100) nor a share of them (0.05)", text);
  if (value >= static_cast<double>(steps) && value >= 1)
    FailUsage(Field("warmup"), "{} steps of warm-up, but there are only {} steps", text, steps);
  return value < 1 ? std::llround(value * static_cast<double>(steps)) : static_cast<int64_t>(value);
}

}  // namespace shiftrt
