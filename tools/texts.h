// Texts that commands calibrate on and measure with, when they are named and when they are not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "shift/text/calibration.h"

namespace shiftrt {

// What `given` (--calib) asks for, or else calibration.txt beside the model; samples are cut to the model's context.
// Throws UsageError when there is neither.
CalibrationSpec CalibrationFor(const std::string& given, const Model& model);
CalibrationSet OpenCalibration(const std::string& given, const Model& model, uint64_t seed);

// Tokens whose perplexity is compared, and where they are from.
struct HeldOutText {
  std::string source;
  std::vector<int32_t> tokens;
};
// What `given` (--text) names, or heldout.txt beside the model, or else the held-out samples of `calibration`. Throws
// UsageError when there is none of them.
HeldOutText OpenHeldOut(const std::string& given, const Model& model, const CalibrationSet& calibration);

}  // namespace shiftrt
