// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/recipe.h"

#include <algorithm>

#include "api/repair.h"
#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/words.h"
#include "shift/criteria/criteria.h"

namespace shiftrt {

namespace {

bool ParseFlag(std::string_view field, const std::string& text) {
  if (text != "true" && text != "false") FailUsage(Field(std::string(field)), "\"{}\" is neither true nor false", text);
  return text == "true";
}

uint64_t ParseSeed(const std::string& text) {
  uint64_t seed = 0;
  if (!ParseNumber(text, &seed)) FailUsage(Field("seed"), "\"{}\" is not a whole number from 0 on", text);
  return seed;
}

// The fields of a recipe by name, each with the parser of its type.
struct FieldRow {
  std::string_view name;
  void (*set)(const std::string& text, Recipe& recipe);
};
constexpr FieldRow kFields[] = {
    {"prune", [](const std::string& text, Recipe& to) { to.prune = ParsePrune(text); }},
    {"correction", [](const std::string& text, Recipe& to) { to.correction = FindCorrection(text).name; }},
    {"rank", [](const std::string& text, Recipe& to) { to.rank = ParseRank(text); }},
    {"lambda", [](const std::string& text, Recipe& to) { to.lambda = ParseLambda(text); }},
    {"penalize_bias", [](const std::string& text, Recipe& to) { to.penalize_bias = ParseFlag("penalize_bias", text); }},
    {"factorization", [](const std::string& text, Recipe& to) { to.factorization = ParseFactorization(text); }},
    {"mode", [](const std::string& text, Recipe& to) { to.mode = ParseCalibrationMode(text); }},
    {"weighting", [](const std::string& text, Recipe& to) { to.weighting = ParseTokenWeights(text); }},
    {"span", [](const std::string& text, Recipe& to) { to.span = ParseFlag("span", text); }},
    {"gate", [](const std::string& text, Recipe& to) { to.gate = ParseFlag("gate", text); }},
    {"heal", [](const std::string& text, Recipe& to) { to.heal = ParseHeal(text); }},
    {"merge", [](const std::string& text, Recipe& to) { to.merge = ParseMerge(text); }},
    {"seed", [](const std::string& text, Recipe& to) { to.seed = ParseSeed(text); }},
    {"text", [](const std::string& text, Recipe& to) { to.text = ParseCalibration(text); }},
};

}  // namespace

void Set(std::string_view field, const std::string& text, Recipe& recipe) {
  const auto row = std::find_if(std::begin(kFields), std::end(kFields),
                                [&](const FieldRow& candidate) { return candidate.name == field; });
  if (row == std::end(kFields)) {
    std::vector<std::string_view> known;
    for (const FieldRow& one : kFields) known.push_back(one.name);
    FailUsage(Field(std::string(field)), "a recipe has no such field; it has {}", fmt::join(known, ", "));
  }
  row->set(text, recipe);
}

bool ReadsText(const Recipe& recipe) { return ReadsText(recipe, /*scored=*/!recipe.gram.load.empty()); }

std::vector<Choice> CriteriaNames() {
  std::vector<Choice> names;
  for (const Criterion& criterion : Criteria()) names.push_back({criterion.name, criterion.summary});
  return names;
}

std::vector<Choice> CorrectionNames() {
  std::vector<Choice> names;
  for (const Correction& correction : Corrections()) names.push_back({correction.name, correction.summary});
  return names;
}

const std::vector<NamedRecipe>& NamedRecipes() {
  static const std::vector<NamedRecipe> table = {
      // The paper does not say which lambda it used, so every lambda agrees with it.
      {"paper",
       "an adapter of rank 64 per removed block",
       "lra, svd, rank 64, fitted independently, all tokens alike",
       {{"prune", "bi:0.25"},
        {"correction", "lra"},
        {"rank", "64"},
        {"factorization", "svd"},
        {"mode", "independent"},
        {"weighting", "none"},
        {"heal", "off"},
        {"span", "false"},
        {"gate", "false"}},
       "",
       "c4"},
      {"stock",
       "nothing, and the architecture stays stock",
       "refit, healed projections",
       {{"prune", "bi:0.25,keep=first:1"}, {"correction", "refit"}, {"weighting", "none"}, {"heal", "all"}}},
      {"adapters",
       "an adapter of rank 64 per run of removed blocks",
       "joint, rank 64, healed projections",
       {{"prune", "bi:0.25,keep=first:1"},
        {"correction", "joint"},
        {"rank", "64"},
        {"factorization", "rrr"},
        {"weighting", "none"},
        {"heal", "all"}}},
      {"best",
       "a full adapter per run of removed blocks",
       "joint, full rank, healed projections",
       {{"prune", "bi:0.25,keep=first:1"},
        {"correction", "joint"},
        {"rank", "full"},
        {"weighting", "none"},
        {"heal", "all"}}},
      {"recover",
       "an adapter of rank 64 per run of removed blocks, and weights of its own",
       "joint, rank 64, then a training on the text (`run` alone)",
       {{"prune", "streamline:0.25,keep=first:1"},
        {"correction", "joint"},
        {"rank", "64"},
        {"factorization", "rrr"},
        {"weighting", "none"},
        {"heal", "off"}},
       "tokens=640k"},
  };
  return table;
}

const NamedRecipe& FindNamedRecipe(std::string_view name) {
  return RowNamed(NamedRecipes(), name, "recipe", "unknown recipe \"{}\"");
}

Recipe FindRecipe(std::string_view name) {
  Recipe recipe;
  for (const auto& [field, text] : FindNamedRecipe(name).settings) Set(field, text, recipe);
  return recipe;
}

}  // namespace shiftrt
