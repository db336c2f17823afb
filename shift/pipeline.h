// SPDX-License-Identifier: Apache-2.0
// The whole method as one call: select, calibrate, correct, merge.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shift/job.h"
#include "shift/measure/gate.h"
#include "shift/options.h"

namespace shiftrt {

// Held-out tokens that gating looks at.
constexpr int64_t kGateTokens = 16384;
// Held-out tokens on which the whole repair is weighed: three models run over them in every job.
constexpr int64_t kGainTokens = 8192;

// The report, and the plans that it is about. `merged_runs` needs the sums of the runs, which files, fits in sequence
// and fits in groups do not have.
struct ShiftResult : RepairReport {
  std::string calibration;  // a description of the text that the sites were fitted on
  DepthPlan pruned, corrected;
  std::optional<DepthPlan> merged;  // empty unless Recipe::merge
};

// If the host has no memory for the sums of all sites at once (runtime/host_memory.h), sites that are fitted
// independently are fitted in groups, with one pass per group. Throws Error for a fit that cannot be divided so.
// With Recipe::gram.load, the calibration may be empty unless the criterion needs it and its scores are not in the
// files. Throws as CheckOptions does.
ShiftResult Shift(const ShiftJob& job, const Recipe& recipe, Spectra spectra = Spectra::kNow);

}  // namespace shiftrt
