// SPDX-License-Identifier: Apache-2.0
#include "tools/named_recipes.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

const std::vector<NamedRecipe>& NamedRecipes() {
  static const std::vector<NamedRecipe> table = {
      // The paper does not say what lambda is, so that any lambda is the paper's.
      {"paper",
       "an adapter of rank 64 per removed block",
       "lra, svd, rank 64, fitted independently, all tokens alike",
       "bi:0.25",
       {{"correction", "lra"},
        {"lra", "64"},
        {"factorize", "svd"},
        {"metric", "identity"},
        {"calibration-mode", "independent"},
        {"token-weight", "none"},
        {"heal", "off"},
        {"span", "false"},
        {"gate", "false"}}},
      {"stock",
       "nothing, and the architecture stays stock",
       "refit, healed projections",
       "bi:0.25,keep=first:1",
       {{"correction", "refit"}, {"token-weight", "none"}, {"heal", "all"}}},
      {"adapters",
       "an adapter of rank 64 per run of removed blocks",
       "joint, rank 64, healed projections",
       "bi:0.25,keep=first:1",
       {{"correction", "joint"},
        {"lra", "64"},
        {"factorize", "rrr"},
        {"metric", "identity"},
        {"token-weight", "none"},
        {"heal", "all"}}},
      {"best",
       "a full adapter per run of removed blocks",
       "joint, full rank, healed projections",
       "bi:0.25,keep=first:1",
       {{"correction", "joint"}, {"lra", "full"}, {"token-weight", "none"}, {"heal", "all"}}},
  };
  return table;
}

std::string NamedRecipesHelp() {
  std::string text;
  for (const NamedRecipe& recipe : NamedRecipes())
    text += fmt::format("\n{:<10}{}; at run time: {}", recipe.name, recipe.summary, recipe.cost);
  return text;
}

std::vector<CLI::Option*> TakeRecipe(CLI::App& app, const std::string& name) {
  std::vector<const char*> known;
  for (const NamedRecipe& recipe : NamedRecipes()) known.push_back(recipe.name);
  const auto found = std::find(known.begin(), known.end(), name);
  if (found == known.end()) FailUsage("--recipe {}: known are {}", name, fmt::join(known, ", "));
  const NamedRecipe& recipe = NamedRecipes()[found - known.begin()];

  std::vector<CLI::Option*> taken;
  const auto take = [&](CLI::Option& option, const char* value) {
    option.add_result(value);
    option.run_callback();
    taken.push_back(&option);
  };
  if (CLI::Option& prune = *app.get_option("--prune"); prune.count() == 0) take(prune, recipe.prune);
  for (const auto& [setting, value] : recipe.settings) {
    CLI::Option* const option = app.get_option_no_throw("--" + std::string(setting));
    if (option == nullptr) continue;  // a flag that this command does not have
    if (option->count() == 0) {
      if (value != std::string("false")) take(*option, value);
      continue;
    }
    const std::string given = fmt::format("{}", fmt::join(option->results(), ","));
    if (given == value) continue;
    const bool flag = value == std::string("false");
    FailUsage("{}{}: --recipe {} has {}; leave out one of the two", option->get_name(), flag ? "" : " " + given, name,
              flag ? "none of it" : fmt::format("{} {}", option->get_name(), value));
  }
  return taken;
}

}  // namespace shiftrt
