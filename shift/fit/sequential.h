// Sites fitted one after another, each on the stream that the corrections before it leave.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/progress.h"
#include "shift/fit/fit.h"
#include "shift/text/calibration.h"
#include "shift/text/token_weights.h"

namespace shiftrt {

enum class Calibration {
  kIndependent,  // all sites from one pass of the original model (the paper's default)
  kSequential,   // inputs from the corrected stream; target: what the site's own blocks add to it
  kDrift,        // inputs from the corrected stream; target: the original stream after the site less those inputs
};
// "independent", "sequential", "drift". Throws UsageError for anything else.
Calibration ParseCalibrationMode(const std::string& text);
const char* Name(Calibration calibration);

// Cost: one pass of the model (kDrift: two) and a fit between any two sites. The stream of the whole calibration text
// is held while it goes from site to site: tokens x hidden x 4 bytes, twice that for kDrift.
FittedSites FitInSequence(const Context& context, const Model& model, const CalibrationSet& calibration,
                          const std::vector<Site>& sites, Calibration mode, const TokenWeighting& weighting,
                          const FitOptions& options, Progress& progress);

}  // namespace shiftrt
