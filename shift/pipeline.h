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

struct ShiftResult {
  Selection selection;
  std::string calibration;        // a description of the text that the sites were fitted on
  std::vector<SiteReport> sites;  // empty if nothing is fitted
  // Merged runs of several sites, measured over the whole run as a span is; none without their sums, which files, fits
  // in sequence and fits in groups do not have.
  std::vector<SiteReport> merged_runs;
  std::vector<SiteReport> healed;      // projections of kept blocks that were fitted again, in the order of the fits
  std::optional<GateVerdict> healing;  // says if they stayed, by the held-out loss; none without it
  std::vector<Trial> trials;           // the recipes tried by a correction that chooses its recipe,
  size_t chosen_trial = 0;             // the index of the chosen one,
  std::vector<std::string> untried;    // and those that could not be tried, with the reason
  std::vector<GateVerdict> gate;       // empty unless options.gate
  DepthPlan pruned, corrected;
  std::optional<DepthPlan> merged;  // empty unless options.merge
  StepSeconds seconds;
};

// If the host has no memory for the sums of all sites at once (runtime/host_memory.h), sites that are fitted
// independently are fitted in groups, with one pass per group. Throws Error for a fit that cannot be divided so.
// With options.gram.load, the calibration may be empty unless the criterion needs it and its scores are not in the
// files. Throws as CheckOptions does.
ShiftResult Shift(const ShiftJob& job, const ShiftOptions& options);

}  // namespace shiftrt
