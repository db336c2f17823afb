// SPDX-License-Identifier: Apache-2.0
#include "tools/variants.h"

#include <fmt/format.h>

#include <algorithm>

namespace shiftrt {

namespace {

Variant Original(DepthPlan plan) { return {VariantKind::kOriginal, "original", "original", std::move(plan)}; }

Variant Pruned(DepthPlan plan) { return {VariantKind::kPruned, "pruned", "pruned", std::move(plan)}; }

// The name of a variant with this correction.
std::string NameOf(std::string_view correction) { return correction.empty() ? "lra" : std::string(correction); }

// Says for tables what stands in the removed blocks' place, and what else was fitted again.
std::string LabelOf(const ShiftOptions& shift, const ShiftResult& result) {
  std::string correction = Label(*shift.correction, shift.fit.rank, shift.span);
  if (!result.trials.empty())
    correction = fmt::format("auto ({})", Label(FindCorrection(result.trials[result.chosen_trial].recipe.correction),
                                                shift.fit.rank, shift.span));
  const bool healed = shift.heal != Heal::kOff && (!result.healing || result.healing->kept);
  return !healed ? correction : fmt::format("{}, healed ({})", correction, Name(shift.heal));
}

// "none" is not a name for a plan with something in it.
std::string NameOf(const ShiftOptions& shift) {
  return shift.correction->makes == Makes::kNothing ? "healed" : NameOf(shift.correction->name);
}

// True if blocks of the model were trained, or projections of them fitted again.
bool ChangesBlocks(const Provenance& made) {
  if (made.finetune) return true;
  const RecipeText& recipe = made.recipe;
  return (!recipe.heal.empty() && ParseHeal(recipe.heal) != Heal::kOff) ||
         (!recipe.correction.empty() && FindCorrection(recipe.correction).changes_blocks());
}

}  // namespace

bool Corrects(const ShiftOptions& shift) {
  return shift.correction->makes != Makes::kNothing || shift.heal != Heal::kOff;
}

std::vector<std::string> VariantNames(const ShiftOptions& shift) {
  std::vector<std::string> names = {"original", "pruned"};
  if (Corrects(shift)) names.push_back(NameOf(shift));
  if (shift.merge != Merge::kOff) names.push_back("merged");
  return names;
}

std::vector<Variant> VariantsOf(const Model& model, const ShiftResult& result, const ShiftOptions& shift) {
  std::vector<Variant> variants = {Original(model.plan), Pruned(result.pruned)};
  if (Corrects(shift))
    variants.push_back(
        {VariantKind::kCorrected, NameOf(shift), "pruned + " + LabelOf(shift, result), result.corrected});
  if (result.merged)
    variants.push_back({VariantKind::kMerged, "merged", fmt::format("merged ({})", Name(shift.merge)), *result.merged});
  return variants;
}

std::vector<Variant> SavedVariants(const Model& model) {
  const DepthPlan original = DepthPlan::Original(model.weights->config.layers), bare = model.plan.Uncorrected();
  const bool pruned = !model.removed.empty() || bare != original;
  // Saved with its weights after its blocks were trained or fitted again: the blocks before that are not there.
  if (bare == original && model.provenance && ChangesBlocks(*model.provenance)) {
    const std::string name = NameOf(model.provenance->recipe.correction);
    return {{VariantKind::kCorrected, name, name, model.plan}};
  }
  std::vector<Variant> variants;
  // A directory of the format hf-lra has no more than runs, so that there is no original to compare with.
  const std::vector<const BlockStage*> blocks = original.Blocks();
  const bool whole = std::none_of(blocks.begin(), blocks.end(), [&](const BlockStage* block) {
    return MissingTensor(*model.weights, *block) != nullptr;
  });
  if (!pruned || (bare != original && whole)) variants.push_back(Original(original));
  if (pruned) variants.push_back(Pruned(bare));
  if (model.plan == bare) return variants;
  const std::string before = variants.back().name + " + ";
  if (!model.provenance) {  // a model of somebody else's with LoRA
    variants.push_back({VariantKind::kCorrected, "lora", before + "LoRA", model.plan});
    return variants;
  }
  const std::string &correction = model.provenance->recipe.correction, &merge = model.provenance->recipe.merge;
  if (!merge.empty() && ParseMerge(merge) != Merge::kOff) {
    variants.push_back({VariantKind::kMerged, "merged", fmt::format("merged ({})", merge), model.plan});
  } else {
    const std::string name = NameOf(correction);
    variants.push_back({VariantKind::kCorrected, name, before + name, model.plan});
  }
  return variants;
}

}  // namespace shiftrt
