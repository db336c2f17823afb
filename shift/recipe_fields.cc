// SPDX-License-Identifier: Apache-2.0
#include "shift/recipe_fields.h"

#include <algorithm>
#include <vector>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "shift/options.h"

namespace shiftrt {

namespace {

std::string Words(bool flag) { return flag ? "true" : "false"; }

template <auto kMember>
void SetFlag(std::string_view name, const std::string& words, Recipe& recipe) {
  if (words != "true" && words != "false")
    FailUsage(Field(std::string(name)), "\"{}\" is neither true nor false", words);
  recipe.*kMember = words == "true";
}

void SetSeed(const std::string& words, Recipe& recipe) {
  if (!ParseNumber(words, &recipe.seed)) FailUsage(Field("seed"), "\"{}\" is not a whole number from 0 on", words);
}

constexpr RecipeField kFields[] = {
    {"prune", [](const Recipe& r) { return Format(r.prune); },
     [](const std::string& words, Recipe& r) { r.prune = ParsePrune(words); }, &RecipeText::prune},
    {"correction", [](const Recipe& r) { return CorrectionName(r); },
     [](const std::string& words, Recipe& r) { r.correction = FindCorrection(words).name; }, &RecipeText::correction},
    {"rank", [](const Recipe& r) { return Format(r.rank); },
     [](const std::string& words, Recipe& r) { r.rank = ParseRank(words); }, &RecipeText::rank, Setting::kRank},
    {"lambda", [](const Recipe& r) { return Format(r.lambda); },
     [](const std::string& words, Recipe& r) { r.lambda = ParseLambda(words); }, &RecipeText::lambda, Setting::kLambda},
    {"penalize_bias", [](const Recipe& r) { return Words(r.penalize_bias); },
     [](const std::string& words, Recipe& r) { SetFlag<&Recipe::penalize_bias>("penalize_bias", words, r); },
     &RecipeText::penalize_bias, Setting::kPenalizedBias},
    {"factorization", [](const Recipe& r) { return std::string(Name(r.factorization)); },
     [](const std::string& words, Recipe& r) { r.factorization = ParseFactorization(words); },
     &RecipeText::factorization, Setting::kFactorization},
    {"mode", [](const Recipe& r) { return std::string(Name(r.mode)); },
     [](const std::string& words, Recipe& r) { r.mode = ParseCalibrationMode(words); }, &RecipeText::calibration_mode,
     Setting::kMode},
    {"weighting", [](const Recipe& r) { return Format(r.weighting); },
     [](const std::string& words, Recipe& r) { r.weighting = ParseTokenWeights(words); }, &RecipeText::token_weight,
     Setting::kWeights},
    {"span", [](const Recipe& r) { return Words(r.span); },
     [](const std::string& words, Recipe& r) { SetFlag<&Recipe::span>("span", words, r); }, &RecipeText::span},
    {"gate", [](const Recipe& r) { return Words(r.gate); },
     [](const std::string& words, Recipe& r) { SetFlag<&Recipe::gate>("gate", words, r); }, &RecipeText::gate,
     Setting::kGate},
    {"heal", [](const Recipe& r) { return std::string(Name(r.heal)); },
     [](const std::string& words, Recipe& r) { r.heal = ParseHeal(words); }, &RecipeText::heal},
    {"merge", [](const Recipe& r) { return std::string(Name(r.merge)); },
     [](const std::string& words, Recipe& r) { r.merge = ParseMerge(words); }, &RecipeText::merge},
    {"quantize", [](const Recipe& r) { return Format(r.quantise); },
     [](const std::string& words, Recipe& r) { r.quantise = ParseQuantise(words); }, &RecipeText::quantise},
    {"seed", [](const Recipe& r) { return fmt::format("{}", r.seed); }, SetSeed, &RecipeText::seed},
    {"text",
     [](const Recipe& r) {
       return fmt::format("{}:{}x{}", static_cast<const std::string&>(r.text.source), r.text.samples, r.text.tokens);
     },
     [](const std::string& words, Recipe& r) { r.text = ParseCalibration(words); }},
};

}  // namespace

std::span<const RecipeField> RecipeFields() { return kFields; }

const RecipeField& FieldNamed(std::string_view name) {
  const auto row = std::ranges::find(kFields, name, &RecipeField::name);
  if (row != std::end(kFields)) return *row;
  std::vector<std::string_view> known;
  for (const RecipeField& one : kFields) known.push_back(one.name);
  FailUsage(Field(std::string(name)), "a recipe has no such field; it has {}", fmt::join(known, ", "));
}

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
