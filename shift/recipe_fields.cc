// SPDX-License-Identifier: Apache-2.0
#include "shift/recipe_fields.h"

#include <vector>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "shift/options.h"

namespace shiftrt {

namespace {

constexpr RecipeField kFields[] = {
    {ParsedRow<[](const std::string& words) { return ParsePrune(words); }, &Recipe::prune>("prune"),
     &RecipeText::prune},
    {{"correction", FieldKind::kText, [](const Recipe& recipe) { return CorrectionName(recipe); },
      [](std::string_view, const std::string& words, Recipe& recipe) {
        recipe.correction = FindCorrection(words).name;
      }},
     &RecipeText::correction},
    {ParsedRow<ParseRank, &Recipe::rank>("rank"), &RecipeText::rank, Setting::kRank},
    {ParsedRow<ParseLambda, &Recipe::lambda>("lambda"), &RecipeText::lambda, Setting::kLambda},
    {MemberRow<&Recipe::penalize_bias>("penalize_bias"), &RecipeText::penalize_bias, Setting::kPenalizedBias},
    {ParsedRow<ParseFactorization, &Recipe::factorization>("factorization"), &RecipeText::factorization,
     Setting::kFactorization},
    {ParsedRow<ParseCalibrationMode, &Recipe::mode>("mode"), &RecipeText::calibration_mode, Setting::kMode},
    {ParsedRow<ParseTokenWeights, &Recipe::weighting>("weighting"), &RecipeText::token_weight, Setting::kWeights},
    {MemberRow<&Recipe::span>("span"), &RecipeText::span},
    {MemberRow<&Recipe::gate>("gate"), &RecipeText::gate, Setting::kGate},
    {ParsedRow<ParseHeal, &Recipe::heal>("heal"), &RecipeText::heal},
    {ParsedRow<ParseMerge, &Recipe::merge>("merge"), &RecipeText::merge},
    {ParsedRow<ParseQuantise, &Recipe::quantise>("quantize"), &RecipeText::quantise},
    {MemberRow<&Recipe::seed>("seed"), &RecipeText::seed},
    {{"text", FieldKind::kText,
      [](const Recipe& recipe) {
        const auto& [source, samples, tokens] = recipe.text;
        return fmt::format("{}:{}x{}", static_cast<const std::string&>(source), samples, tokens);
      },
      [](std::string_view, const std::string& words, Recipe& recipe) { recipe.text = ParseCalibration(words); }}},
};
// The two others are `benefit` and `gram`, which FitKey (api/kept_fit.h) adds to the rows.
static_assert(std::size(kFields) == MembersOf<Recipe>() - 2, "every member has a row");

}  // namespace

std::span<const RecipeField> RecipeFields() { return kFields; }

const RecipeField& FieldNamed(std::string_view name) { return FieldNamed(RecipeFields(), name, "a recipe"); }

std::string SettingText(const Recipe& recipe, bool seed) {
  std::vector<std::string> parts;
  for (const RecipeField& field : kFields)
    if (field.name != "text" && (seed || field.name != "seed"))
      parts.push_back(fmt::format("{} {}", field.name, field.words(recipe)));
  return fmt::format("{}", fmt::join(parts, " "));
}

RecipeText RecipeTextOf(const Recipe& recipe) {
  const SettingSet accepted = Accepted(recipe);
  RecipeText text;
  for (const RecipeField& field : kFields) {
    if (field.read_as != Setting::kCount && !accepted.has(field.read_as)) continue;
    const std::string words = field.words(recipe);
    std::visit(Overloaded{[](std::monostate) {}, [&](std::string RecipeText::*member) { text.*member = words; },
                          [&](std::optional<bool> RecipeText::*member) { text.*member = words == "true"; },
                          [&](std::optional<uint64_t> RecipeText::*member) {
                            uint64_t& value = (text.*member).emplace();
                            Check(ParseNumber(words, &value), "{}: \"{}\" is no number", field.name, words);
                          }},
               field.recorded);
  }
  return text;
}

}  // namespace shiftrt
