// SPDX-License-Identifier: Apache-2.0
// The settings of a recipe as one table: the name of each, its words, and where a saved model records it. Set(), the
// key of a kept fit, the key of a sweep's rows, the provenance of a model and the options of `run` and `eval` visit it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "include/shiftrt/provenance.h"
#include "include/shiftrt/recipe.h"
#include "shift/setting.h"

namespace shiftrt {

// The member of RecipeText that has the words of a setting, or its value.
using RecordedIn = std::variant<std::monostate, std::string RecipeText::*, std::optional<bool> RecipeText::*,
                                std::optional<uint64_t> RecipeText::*>;

struct RecipeField {
  std::string_view name;                                  // as Set() takes it
  std::string (*words)(const Recipe& recipe);             // what `set` reads
  void (*set)(const std::string& words, Recipe& recipe);  // throws UsageError for other words
  RecordedIn recorded = {};                               // nothing: a saved model records it elsewhere
  // The setting that a correction must accept for this field to have a value (Accepted()); kCount: it always has one.
  Setting read_as = Setting::kCount;

  // True if the words are "true" and "false".
  bool flag() const { return std::holds_alternative<std::optional<bool> RecipeText::*>(recorded); }
};
std::span<const RecipeField> RecipeFields();
// Throws UsageError with that name for one that is not there.
const RecipeField& FieldNamed(std::string_view name);

// Names and words of all settings but the calibration text: recipes with equal texts repair a model equally from the
// same text. `seed`: whether the seed is one of them.
std::string SettingText(const Recipe& recipe, bool seed = false);

// The settings that the corrections of the recipe read.
RecipeText RecipeTextOf(const Recipe& recipe);

}  // namespace shiftrt
