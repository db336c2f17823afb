// SPDX-License-Identifier: Apache-2.0
// Options of `run` and `eval` that say what to remove and how to repair it. `--recipe NAME` is several of them at once,
// by what the repaired model may cost at run time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiftrt/model.h"
#include "shiftrt/repair.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shiftrt {

struct CommonOptions;

// The words of the recipe's settings by the names of RecipeFields(), as options give them.
using RecipeWords = std::map<std::string_view, std::string>;
// The words of a recipe without any option.
RecipeWords DefaultWords();

struct RecipeOptions {
  RecipeWords words = DefaultWords();
  std::string calib = {};
  std::string named = {};  // --recipe
  std::vector<std::string> load_gram = {};
  std::string save_gram = {}, gram_layers = "removed";
  std::vector<std::pair<std::string_view, const CLI::Option*>> given = {};  // by AddTo(): the options of the settings
  bool yes = false;                                                         // see CheckRemoval (tools/selection.h)

  void AddTo(CLI::App& app);
  // Takes over the options of --recipe where it is given. Throws UsageError as TakeRecipe does. Where nobody names
  // layers, those of a `split` model and of saved sums are chosen one by one.
  void TakeNamed(CLI::App& app, bool split);
  // Throws UsageError for what does not parse.
  Recipe Parse(uint64_t seed) const;
  // The calibration text, pulled if it has to be; without a source if nothing reads it and none is named. Throws
  // UsageError if there is no text.
  CalibrationSpec Text(const Recipe& recipe, const LanguageModel& model, const CommonOptions& common) const;
};

// One line per recipe, for --help.
std::string NamedRecipesHelp();

// Gives the options of a command the values of the recipe; returns those it changed. Throws UsageError for a recipe
// that is not known, and for an option on the command line with another value than the recipe's.
std::vector<CLI::Option*> TakeRecipe(CLI::App& app, const std::string& name);

}  // namespace shiftrt
