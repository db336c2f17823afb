// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/recipe.h"

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

}  // namespace shiftrt
