// SPDX-License-Identifier: Apache-2.0
// The original and variants of it, for commands that compare them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/model.h"

namespace shiftrt {

struct CommonOptions;

// The original that a saved model was made from, over the same weights; nothing for an original model, and for one
// whose directory has not all blocks of its original.
std::optional<LanguageModel> OriginalWithin(const LanguageModel& model);

// The original model `name`, and the variant of these options.
std::vector<ModelVariant> WithOriginal(const CommonOptions& variant, const std::string& name);

// The variant of these options, over the original's weights if it was saved from a model of them.
ModelVariant VariantOf(const CommonOptions& variant, const LanguageModel& original);

// Throws Error unless the tokenizers of both read the text alike, which a comparison token by token needs.
void CheckReadAlike(const ModelVariant& original, const ModelVariant& variant, const std::string& text);

}  // namespace shiftrt
