// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/recipe.h"

#include <fmt/format.h>

#include "runtime/check.h"

namespace shiftrt {

Calibration ParseCalibrationMode(const std::string& text) {
  for (Calibration mode :
       {Calibration::kAuto, Calibration::kIndependent, Calibration::kSequential, Calibration::kDrift})
    if (text == Name(mode)) return mode;
  FailUsage(Field("mode"), "unknown calibration \"{}\"; known: auto, independent, sequential, drift", text);
}

const char* Name(Calibration mode) {
  switch (mode) {
    case Calibration::kAuto: return "auto";
    case Calibration::kIndependent: return "independent";
    case Calibration::kSequential: return "sequential";
    case Calibration::kDrift: return "drift";
  }
  return "?";
}

std::string Format(const Recipe& recipe) {
  const bool adapters = recipe.correction == "lra";
  std::string text =
      fmt::format("{}, token weights {}", adapters ? Name(recipe.mode) : recipe.correction, Format(recipe.weighting));
  if (adapters) text += fmt::format(", {}", Name(recipe.factorization));
  if (recipe.metric != MetricKind::kIdentity) text += fmt::format(", metric {}", Name(recipe.metric));
  return text + fmt::format(", lambda {}", Format(recipe.lambda));
}

}  // namespace shiftrt
