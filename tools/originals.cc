// SPDX-License-Identifier: Apache-2.0
#include "tools/originals.h"

#include "runtime/check.h"
#include "tools/options.h"
#include "tools/outputs.h"

namespace shiftrt {

std::optional<LanguageModel> OriginalWithin(const LanguageModel& model) {
  const std::vector<ModelVariant> variants = SavedVariants(model);
  if (variants.size() < 2 || variants.front().name != "original") return std::nullopt;
  return variants.front().model;
}

std::vector<ModelVariant> WithOriginal(const CommonOptions& variant, const std::string& name) {
  CommonOptions options = variant;
  options.model = name;
  options.lora.clear();
  const LanguageModel original = options.OpenLanguageModel();
  return {{"original", "original", original}, VariantOf(variant, original)};
}

ModelVariant VariantOf(const CommonOptions& variant, const LanguageModel& original) {
  const std::string label = NameOfDirectory(variant.model);
  const bool saved = variant.lora.empty() && original.HasSaved(variant.model);
  return {label, label, saved ? original.WithSaved(variant.model) : variant.OpenLanguageModel()};
}

void CheckReadAlike(const ModelVariant& original, const ModelVariant& variant, const std::string& text) {
  Check(
      original.model.Encode(text) == variant.model.Encode(text),
      "the tokenizers of {} and {} read the text differently, so their predictions cannot be compared token by token: "
      "give a variant of the same model",
      original.model.Name(), variant.model.Name());
}

}  // namespace shiftrt
