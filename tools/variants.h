// SPDX-License-Identifier: Apache-2.0
// The variants of a model that commands compare: of a fit, and of a saved model.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "models/variant.h"
#include "shift/pipeline.h"

namespace shiftrt {

// True if anything is put in the place of the removed blocks, or kept blocks are healed.
bool Corrects(const ShiftOptions& shift);

// Names of the variants that such a fit has: "original", "pruned", "lra" (or the name of another correction) and
// "merged", as far as it has them.
std::vector<std::string> VariantNames(const ShiftOptions& shift);
std::vector<Variant> VariantsOf(const Model& model, const ShiftResult& result, const ShiftOptions& shift);

// The variants that a model directory holds: all its blocks ("original", where the checkpoint has them), the plan
// without its corrections ("pruned", where it does without some), and the plan ("lra", another correction's name,
// "lora" where only --lora corrects it, or "merged"). A directory with weights of its own whose blocks were trained or
// fitted again holds the plan alone.
std::vector<Variant> SavedVariants(const Model& model);

}  // namespace shiftrt
