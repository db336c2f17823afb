// The main job as one call: select, calibrate, solve, factorize, merge.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/progress.h"
#include "shift/calibration.h"
#include "shift/criteria.h"
#include "shift/factorize.h"
#include "shift/merge.h"
#include "shift/ridge.h"

namespace shiftrt {

struct ShiftOptions {
  PruneSpec prune;
  int64_t rank = 64;  // 0: full
  RidgeOptions ridge;
  Factorization factorization = Factorization::kReducedRank;
  Merge merge = Merge::kOff;
  uint64_t seed = 0;
};

struct SiteReport {
  int64_t layer = 0;
  double lambda = 0;
  int64_t rank = 0;
  double r2_fit = 0, r2_heldout = 0;  // of the adapter as it runs; NaN without held-out text
  double condition = 0;
  std::vector<double> singular_values;
  std::string warning;
};

struct ShiftSeconds {
  double select = 0, calibrate = 0, solve = 0, factorize = 0;
};

struct ShiftResult {
  Selection selection;
  std::vector<SiteReport> sites;
  DepthPlan pruned, corrected;      // corrected: one adapter a removed layer
  std::optional<DepthPlan> merged;  // where options.merge asks for it
  ShiftSeconds seconds;
};

ShiftResult Shift(const Context& context, const Model& model, const CalibrationSet& calibration,
                  const ShiftOptions& options, Progress& progress);

}  // namespace shiftrt
