// SPDX-License-Identifier: Apache-2.0
// `run --dry-run`: what the command would do and take, without weights and texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiftrt/recipe.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct CommonOptions;
struct ComparisonOptions;

struct DryRunOptions {
  bool wanted = false;
  std::string config = {}, hardware = "here";
  std::vector<int64_t> devices = {1};

  // Adds --dry-run, and --config, --hardware and --devices, which go with it.
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
};
void PrintDryRun(const DryRun& run);

}  // namespace shiftrt
