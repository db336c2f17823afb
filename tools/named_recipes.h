// SPDX-License-Identifier: Apache-2.0
// `--recipe NAME`: several options at once, by what the repaired model may cost at run time.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shiftrt {

struct NamedRecipe {
  const char* name;
  const char* cost;     // of what stands in for the removed blocks, at run time
  const char* summary;  // for --help
  const char* prune;    // the layers that are removed where --prune does not say it
  // Every other option of a recipe, without its dashes, and the value that it gets; "false" is for a flag that is not
  // given.
  struct Setting {
    const char *option, *value;
  };
  std::vector<Setting> settings;
};

// The table: the only place that says what a recipe is.
const std::vector<NamedRecipe>& NamedRecipes();
std::string NamedRecipesHelp();

// Gives the options of a command the values of the recipe; returns those it changed. Throws UsageError for a recipe
// that is not known, and for an option on the command line with another value than the recipe's.
std::vector<CLI::Option*> TakeRecipe(CLI::App& app, const std::string& name);

}  // namespace shiftrt
