// SPDX-License-Identifier: Apache-2.0
// `run --dry-run`: what the command would do and take, without weights and texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiftrt/model.h"
#include "shiftrt/recipe.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct CommonOptions;
struct ComparisonOptions;

struct DryRunOptions {
  bool wanted = false;
  std::string config = {};

  // Adds --dry-run, and --config, which goes with it.
  void AddTo(CLI::App& app);
};

// A dry run of `run` with these options, which have been checked. `calib` is the value of --calib, and `besides` lists
// what the command would do that the plan does not cover.
struct DryRun {
  const DryRunOptions& options;
  const CommonOptions& common;
  const ComparisonOptions& comparison;
  const Recipe& recipe;
  const std::string& calib;
  std::vector<std::string> besides;
  const std::string& recover;       // the value of --recover, "" if it is not given
  const std::string& recover_loss;  // and of --recover-loss
};
void PrintDryRun(const DryRun& run);

// The texts of a run that begins.
struct RunTexts {
  int64_t calibration = 0, heldout = 0;  // tokens
};
// Lines that say how long the run will take on this machine's CPU, and which smaller text would do; "" for a run of
// less than half a minute, on a GPU or of several processes. The speed is measured, for about a second, where the run
// is not a short one on any machine.
std::string TimeAhead(const DryRun& run, const LanguageModel& model, const RunTexts& texts);

}  // namespace shiftrt
