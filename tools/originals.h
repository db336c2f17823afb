// SPDX-License-Identifier: Apache-2.0
// The original beside variants of it, for commands that compare them.
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

// The original model `name` and the variant. One copy of the weights serves both where they are the same.
std::vector<ModelVariant> WithOriginal(const CommonOptions& common, const std::string& name,
                                       const LanguageModel& variant);

// A model that is given by its directory or file beside the original, over the original's weights where they are its
// own.
ModelVariant BesideOriginal(const CommonOptions& common, const LanguageModel& original, const std::string& name);

// Throws Error unless the tokenizers of both read the text alike, which a comparison token by token needs.
void CheckReadAlike(const ModelVariant& original, const ModelVariant& variant, const std::string& text);

}  // namespace shiftrt
