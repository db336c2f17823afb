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
#include "runtime/field_rows.h"
#include "shift/setting.h"

namespace shiftrt {

// The member of RecipeText that has the words of a setting, or its value.
using RecordedIn = std::variant<std::monostate, std::string RecipeText::*, std::optional<bool> RecipeText::*,
                                std::optional<uint64_t> RecipeText::*>;

struct RecipeField : FieldRow<Recipe> {
  RecordedIn recorded = {};  // nothing: a saved model records it elsewhere
  // The setting that a correction must accept for this field to have a value (Accepted()); kCount: it always has one.
  Setting read_as = Setting::kCount;
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
