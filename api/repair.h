// SPDX-License-Identifier: Apache-2.0
// Recipes and reports of the public face, and their counterparts in shift/.
#pragma once

#include <string_view>

#include "include/shiftrt/recipe.h"
#include "shift/pipeline.h"

namespace shiftrt {

TokenWeighting WeightingOf(const TokenWeights& weights);
// The options that a recipe stands for. Throws UsageError for an unknown correction.
ShiftOptions OptionsOf(const Recipe& recipe);
// The row of a named recipe. Throws UsageError listing the names.
const NamedRecipe& FindNamedRecipe(std::string_view name);

// The one place where provenance of a repair is made: from its settings, of which `options.mode` is no longer kAuto,
// and from what it found.
Provenance ProvenanceOf(const std::string& model, const ShiftOptions& options, const CalibrationSet& text,
                        const ShiftResult& result);
RepairReport ReportOf(const ShiftResult& result);
// All settings, for a key: the same for equal settings alone.
std::string Text(const ShiftOptions& options);
// The other way: everything of the result but its plans. Throws Error for a report that lacks what was removed.
ShiftResult ResultOf(const RepairReport& report, const CalibrationReport& text);

}  // namespace shiftrt
