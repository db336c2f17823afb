// SPDX-License-Identifier: Apache-2.0
#include "tools/named_recipes.h"

#include <CLI/CLI.hpp>
#include <string_view>

#include "api/repair.h"
#include "runtime/check.h"
#include "tools/fields.h"
#include "tools/find_option.h"

namespace shiftrt {

std::string NamedRecipesHelp() {
  std::string text;
  for (const NamedRecipe& recipe : NamedRecipes())
    text += fmt::format("\n{:<10}{}; at run time: {}", recipe.name, recipe.summary, recipe.cost);
  return text;
}

std::vector<CLI::Option*> TakeRecipe(CLI::App& app, const std::string& name) {
  const NamedRecipe& recipe = FindNamedRecipe(name);
  std::vector<std::pair<const char*, const char*>> settings = recipe.settings;
  if (*recipe.recover != '\0') {
    if (FindOption(app, "--recover") == nullptr)
      FailUsage("--recipe {}: it trains the repaired model, which only `shiftrt run` does", name);
    settings.emplace_back("budget", recipe.recover);
  }
  std::vector<CLI::Option*> taken;
  for (const auto& [field, value] : settings) {
    CLI::Option* const option = OptionOf(field, app);
    if (option == nullptr) continue;  // a flag that this command does not have
    if (option->count() == 0) {
      if (value == std::string_view("false")) continue;
      option->add_result(value);
      option->run_callback();
      taken.push_back(option);
      continue;
    }
    const std::string given = fmt::format("{}", fmt::join(option->results(), ","));
    // A recipe chooses neither the layers nor how long the training takes, if the user does.
    if (given == value || field == std::string_view("prune") || field == std::string_view("budget")) continue;
    const bool flag = value == std::string_view("false");
    FailUsage("{}{}: --recipe {} has {}; leave out one of the two", option->get_name(), flag ? "" : " " + given, name,
              flag ? "none of it" : fmt::format("{} {}", option->get_name(), value));
  }
  return taken;
}

}  // namespace shiftrt
