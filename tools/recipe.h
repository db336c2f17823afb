// SPDX-License-Identifier: Apache-2.0
// Options of `run` and `eval` that say what to remove and how to repair it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiftrt/model.h"
#include "shiftrt/repair.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shiftrt {

struct CommonOptions;

struct RecipeOptions {
  std::string prune = "bi:0.25", lra = "64", calib = {}, lambda = "gcv", factorize = "rrr", merge = "off";
  std::string named = {};  // --recipe
  std::string heal = "off", correction = {}, calibration_mode = "auto", token_weight = "none";
  std::vector<std::string> load_gram = {};
  std::string save_gram = {}, gram_layers = "removed";
  std::vector<const CLI::Option*> added = {};  // by AddTo()
  bool penalize_bias = false, span = false, gate = false;
  bool yes = false;  // see CheckRemoval (tools/selection.h)

  void AddTo(CLI::App& app);
  // Takes over the options of --recipe where it is given. Throws UsageError as TakeRecipe does.
  void TakeNamed(CLI::App& app) const;
  // Throws UsageError for what does not parse.
  Recipe Parse(uint64_t seed) const;
  // The calibration text, pulled if it has to be; without a source if nothing reads it and none is named. Throws
  // UsageError if there is no text.
  CalibrationSpec Text(const Recipe& recipe, const LanguageModel& model, const CommonOptions& common) const;
};

}  // namespace shiftrt
