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

std::vector<ModelVariant> WithOriginal(const CommonOptions& common, const std::string& name,
                                       const LanguageModel& variant) {
  CommonOptions options = common;
  options.model = name;
  options.lora.clear();
  LanguageModel original = options.OpenLanguageModel();
  if (original.MadeBy() == nullptr && original.WeightsFingerprint() == variant.WeightsFingerprint())
    if (const std::optional<LanguageModel> within = OriginalWithin(variant)) original = *within;
  const std::string label = NameOfDirectory(common.model);
  return {{"original", "original", original}, {label, label, variant}};
}

ModelVariant BesideOriginal(const CommonOptions& common, const LanguageModel& original, const std::string& name) {
  CommonOptions options = common;
  options.model = name;
  options.lora.clear();
  const LanguageModel opened = options.OpenLanguageModel();
  const std::string label = NameOfDirectory(name);
  const bool alike = opened.MadeBy() != nullptr && opened.WeightsFingerprint() == original.WeightsFingerprint();
  return {label, label, alike ? original.WithSaved(name) : opened};
}

void CheckReadAlike(const ModelVariant& original, const ModelVariant& variant, const std::string& text) {
  Check(
      original.model.Encode(text) == variant.model.Encode(text),
      "the tokenizers of {} and {} read the text differently, so their predictions cannot be compared token by token: "
      "give a variant of the same model",
      original.model.Name(), variant.model.Name());
}

}  // namespace shiftrt
