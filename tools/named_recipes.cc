// SPDX-License-Identifier: Apache-2.0
#include "tools/named_recipes.h"

#include <CLI/CLI.hpp>
#include <string_view>

#include "api/repair.h"
#include "runtime/check.h"
#include "tools/fields.h"

namespace shiftrt {

std::string NamedRecipesHelp() {
  std::string text;
  for (const NamedRecipe& recipe : NamedRecipes())
    text += fmt::format("\n{:<10}{}; at run time: {}", recipe.name, recipe.summary, recipe.cost);
  return text;
}

std::vector<CLI::Option*> TakeRecipe(CLI::App& app, const std::string& name) {
  std::vector<CLI::Option*> taken;
  for (const auto& [field, value] : FindNamedRecipe(name).settings) {
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
    if (given == value || field == std::string_view("prune")) continue;  // a recipe does not choose the layers
    const bool flag = value == std::string_view("false");
    FailUsage("{}{}: --recipe {} has {}; leave out one of the two", option->get_name(), flag ? "" : " " + given, name,
              flag ? "none of it" : fmt::format("{} {}", option->get_name(), value));
  }
  return taken;
}

}  // namespace shiftrt
