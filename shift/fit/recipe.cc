// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/recipe.h"

#include <fmt/format.h>

#include "runtime/check.h"

namespace shiftrt {

Calibration ParseCalibrationMode(const std::string& text) {
  for (Calibration mode : {Calibration::kIndependent, Calibration::kSequential, Calibration::kDrift})
    if (text == Name(mode)) return mode;
  FailUsage(Field("mode"), "unknown calibration \"{}\"; known: independent, sequential, drift", text);
}

const char* Name(Calibration mode) {
  switch (mode) {
    case Calibration::kIndependent: return "independent";
    case Calibration::kSequential: return "sequential";
    case Calibration::kDrift: return "drift";
  }
  return "?";
}

std::string Format(const Recipe& recipe) {
  return fmt::format("{}, token weights {}, {}, lambda {}", Name(recipe.mode), Format(recipe.weighting),
                     Name(recipe.factorization), Format(recipe.lambda));
}

}  // namespace shiftrt
