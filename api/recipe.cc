// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/recipe.h"

#include "api/repair.h"
#include "runtime/words.h"
#include "shift/criteria/criteria.h"
#include "shift/recipe_fields.h"

namespace shiftrt {

void Set(std::string_view field, const std::string& text, Recipe& recipe) { FieldNamed(field).set(text, recipe); }

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
       {{"prune", "streamline:0.25,keep=first:1"}, {"correction", "refit"}, {"weighting", "none"}, {"heal", "all"}}},
      {"adapters",
       "an adapter of rank 64 per run of removed blocks",
       "joint, rank 64, healed projections",
       {{"prune", "streamline:0.25,keep=first:1"},
        {"correction", "joint"},
        {"rank", "64"},
        {"factorization", "rrr"},
        {"weighting", "none"},
        {"heal", "all"}}},
      {"best",
       "a full adapter per run of removed blocks",
       "joint, full rank, healed projections",
       {{"prune", "streamline:0.25,keep=first:1"},
        {"correction", "joint"},
        {"rank", "full"},
        {"weighting", "none"},
        {"heal", "all"}}},
      {"portable",
       "a full adapter on the normed stream per run of removed blocks",
       "norm-refit, full rank; for other programs (--export gguf, hf)",
       {{"prune", "streamline:0.25,keep=first:1"},
        {"correction", "norm-refit"},
        {"rank", "full"},
        {"weighting", "none"}}},
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
