// SPDX-License-Identifier: Apache-2.0
// The whole method as one call: select, calibrate, correct, merge.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shift/corrections/corrections.h"
#include "shift/criteria/criteria.h"
#include "shift/fit/fit.h"
#include "shift/fit/merge.h"
#include "shift/sums/token_weights.h"
#include "shift/job.h"
#include "shift/measure/gate.h"
#include "shift/refit/walk.h"

namespace shiftrt {

// Files of the ridge sums. Without any, the sums exist in memory only.
struct GramFiles {
  std::vector<std::filesystem::path> load;  // their sum is used; the model is not run for the sites
  std::filesystem::path save;
  bool all_layers = false;  // save the sums of all layers, not only of the removed ones

  bool used() const { return !load.empty() || !save.empty(); }
};

struct ShiftOptions {
  PruneSpec prune;
  const Correction* correction = &Corrections().front();  // a row of the table
  FitOptions fit;
  Calibration mode = Calibration::kIndependent;
  TokenWeighting weighting;
  bool span = false;  // one adapter for each run of neighbours, fitted from its first input to its last output
  bool gate = false;  // drop corrections without which the held-out loss is lower
  Merge merge = Merge::kOff;
  Heal heal = Heal::kOff;  // fit projections of the kept blocks behind the first removed one again
  GramFiles gram;
  uint64_t seed = 0;
};

// The calibration mode of these options; for kAuto the one that it stands for. That is kDrift for linear residual
// adapters, which are better so on a real model (docs/results-smollm2.md), unless all of them must come from one pass:
// with sums in files, with a budget of parameters for all adapters, and with a model that is split. It is kIndependent
// for everything else.
Calibration ModeOf(const ShiftOptions& options, bool split);

// Whether the correction reduces the rank of a fit whose recipe the caller chooses, and so reads options.fit.metric.
bool TakesMetric(const ShiftOptions& options);

struct ShiftResult {
  Selection selection;
  std::string calibration;        // a description of the text that the sites were fitted on
  std::vector<SiteReport> sites;  // empty if nothing is fitted
  // Merged runs of several sites, measured over the whole run as a span is; none without their sums, which files, fits
  // in sequence and fits in groups do not have.
  std::vector<SiteReport> merged_runs;
  std::vector<SiteReport> healed;    // projections of kept blocks that were fitted again, in the order of the fits
  std::vector<Trial> trials;         // the recipes tried by a correction that chooses its recipe,
  size_t chosen_trial = 0;           // the index of the chosen one,
  std::vector<std::string> untried;  // and those that could not be tried, with the reason
  std::vector<GateVerdict> gate;     // empty unless options.gate
  DepthPlan pruned, corrected;
  std::optional<DepthPlan> merged;  // empty unless options.merge
  StepSeconds seconds;
};

// Throws UsageError, with the field at fault ("rank", "gram.load"), for options that contradict each other or do not go
// with a model of that hidden size.
void CheckOptions(const ShiftOptions& options, int64_t hidden);

// Throws UsageError, with the field at fault, for options that do not work where no process has the whole model.
void CheckSplit(const ShiftOptions& options);

// If the host has no memory for the sums of all sites at once (runtime/host_memory.h), sites that are fitted
// independently are fitted in groups, with one pass per group. Throws Error for a fit that cannot be divided so.
// With options.gram.load, the calibration may be empty unless the criterion needs it and its scores are not in the
// files. Throws as CheckOptions does.
ShiftResult Shift(const ShiftJob& job, const ShiftOptions& options);

}  // namespace shiftrt
