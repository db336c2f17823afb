// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/recipe.h"

#include <algorithm>

#include "runtime/words.h"

namespace shiftrt {

namespace {

constexpr Words<Calibration, 4> kCalibrations = {{"auto", "independent", "sequential", "drift"}};

}  // namespace

const TrialReport* ChosenOf(const std::vector<TrialReport>& trials) {
  const auto chosen = std::find_if(trials.begin(), trials.end(), [](const TrialReport& trial) { return trial.chosen; });
  return chosen == trials.end() ? nullptr : &*chosen;
}

Calibration ParseCalibrationMode(const std::string& text) {
  return kCalibrations.Parse(text, "mode", "unknown calibration \"{}\"");
}

const char* Name(Calibration mode) { return kCalibrations.Of(mode); }

}  // namespace shiftrt
