// SPDX-License-Identifier: Apache-2.0
// Binds the repair of models, and the names of what it can be made of.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/native/common.h"

namespace shiftrt::python {

namespace {

namespace fs = std::filesystem;

using Repaired = std::tuple<LanguageModel, LanguageModel, std::optional<LanguageModel>>;

Repaired RepairModel(const LanguageModel& model, const std::string& name,
                     const std::map<std::string, std::string>& settings, const Resources& resources,
                     nb::object progress, const fs::path& keep) {
  Reports reports(std::move(progress));
  return Released([&]() -> Repaired {
    Recipe recipe = name.empty() ? Recipe() : FindRecipe(name);
    for (const auto& [field, text] : settings) Set(field, text, recipe);
    for (const auto& [field, text] : settings) CheckGiven(recipe, field);
    RepairResult result = Repair(model, recipe, resources, &reports, keep);
    return {std::move(result.pruned), std::move(result.corrected), std::move(result.merged)};
  });
}

std::vector<std::pair<std::string, std::string>> Pairs(const std::vector<Choice>& choices) {
  std::vector<std::pair<std::string, std::string>> pairs;
  pairs.reserve(choices.size());
  for (const Choice& choice : choices) pairs.emplace_back(choice.name, choice.summary);
  return pairs;
}

}  // namespace

void AddRepair(nb::module_& module) {
  module.def("repair", &RepairModel, "model"_a, "recipe"_a, "settings"_a, "resources"_a, "progress"_a.none(), "keep"_a,
             "Prunes and repairs: (pruned, corrected, merged or None).");
  module.def(
      "criteria", [] { return Pairs(CriteriaNames()); }, "(name, summary) of each criterion.");
  module.def(
      "corrections", [] { return Pairs(CorrectionNames()); }, "(name, summary) of each correction.");
  module.def(
      "recipes",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string>> recipes;
        for (const NamedRecipe& recipe : NamedRecipes()) recipes.emplace_back(recipe.name, recipe.summary, recipe.cost);
        return recipes;
      },
      "(name, summary, cost at run time) of each named recipe.");
  module.def(
      "recipe_budget",
      [](const std::string& name) {
        for (const NamedRecipe& recipe : NamedRecipes())
          if (name == recipe.name) return std::string(recipe.recover);
        return std::string();
      },
      "recipe"_a, "The budget of the training that belongs to a named recipe, or an empty text.");
}

}  // namespace shiftrt::python
