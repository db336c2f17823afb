// SPDX-License-Identifier: Apache-2.0
// Functions that the repair, the kept fit and the sweep of the public interface share.
#pragma once

#include <string_view>

#include "include/shiftrt/recipe.h"
#include "shift/pipeline.h"

namespace shiftrt {

// The calibration text, by default calibration.txt next to the model, with samples that the model has positions for.
// Throws UsageError with the name of the field if there is none.
CalibrationSpec TextOf(CalibrationSpec spec, const Model& model, const char* field);
// Throws UsageError for a model that is pruned, corrected or fine-tuned, for jobs that do not take one.
void CheckOriginal(const Model& model);
// The row of a named recipe. Throws UsageError listing the names.
const NamedRecipe& FindNamedRecipe(std::string_view name);

// The one place where provenance of a repair is made: from its settings, of which `recipe.mode` is no longer kAuto,
// and from what it found.
Provenance ProvenanceOf(const std::string& model, const Recipe& recipe, const CalibrationSet& text,
                        const ShiftResult& result);

}  // namespace shiftrt
