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

// One line per recipe, for --help.
std::string NamedRecipesHelp();

// Gives the options of a command the values of the recipe; returns those it changed. Throws UsageError for a recipe
// that is not known, and for an option on the command line with another value than the recipe's.
std::vector<CLI::Option*> TakeRecipe(CLI::App& app, const std::string& name);

}  // namespace shiftrt
