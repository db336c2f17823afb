// The main job as one call: select, calibrate, solve, factorize, merge.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/progress.h"
#include "shift/calibration.h"
#include "shift/criteria.h"
#include "shift/fit.h"
#include "shift/merge.h"

namespace shiftrt {

// Where the accumulators live; nowhere but in memory unless asked.
struct GramFiles {
  std::vector<std::filesystem::path> load;  // their sum is used; the model is not run for the sites
  std::filesystem::path save;
  bool all_layers = false;  // save every layer's, not only those of the removed ones
};

struct ShiftOptions : FitOptions {
  PruneSpec prune;
  Merge merge = Merge::kOff;
  GramFiles gram;
  uint64_t seed = 0;
};

struct ShiftSeconds : FitSeconds {
  double select = 0, calibrate = 0;
};

struct ShiftResult {
  Selection selection;
  std::string calibration;  // for people: what the sites were fitted on
  std::vector<SiteReport> sites;
  DepthPlan pruned, corrected;      // corrected: one adapter a removed layer
  std::optional<DepthPlan> merged;  // where options.merge asks for it
  ShiftSeconds seconds;
};

// With options.gram.load, `calibration` may be empty unless the criterion needs it and its scores are not in the files.
// Throws UsageError for files both loaded and saved.
ShiftResult Shift(const Context& context, const Model& model, const CalibrationSet& calibration,
                  const ShiftOptions& options, Progress& progress);

}  // namespace shiftrt
