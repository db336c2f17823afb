// SPDX-License-Identifier: Apache-2.0
#include "tools/recipe.h"

#include <CLI/CLI.hpp>

#include "api/repair.h"
#include "runtime/check.h"
#include "tools/named_recipes.h"
#include "tools/options.h"
#include "tools/selection.h"
#include "tools/texts.h"

namespace shiftrt {

void RecipeOptions::AddTo(CLI::App& app) {
  const auto others = std::ssize(app.get_options());
  app.add_option("--recipe", named,
                 "a named set of options; an option given beside it must have the same value (--prune is free):" +
                     NamedRecipesHelp());
  app.add_option(
         "--prune", prune,
         "layers to remove: CRITERION:AMOUNT[,keep=first:N,last:N][,unit=half] or layers=3.attn,5,8-10. An amount is\n"
         "a share of the layers (0.25), a number of layers (8), or what is to stay without adapters: params=6.3B or\n"
         "bytes=12GiB. With unit=half every criterion but prune-comp scores attention and MLP of a block apart; a\n"
         "share then removes halves of no more bytes than those blocks have, a number counts halves, and angular and\n"
         "streamline remove consecutive halves. Models with half blocks are exported as hf-lra alone")
      ->capture_default_str();
  AddYes(app, yes);
  app.add_option(
         "--lra", lra,
         "rank of the adapters: a number, full, energy:SHARE (of each fit) or budget:PARAMETERS (of all adapters)")
      ->capture_default_str();
  app.add_option("--correction", correction,
                 "what replaces the removed blocks (default: joint, or lra with an option that joint does not take):" +
                     CorrectionsHelp());
  app.add_option(
         "--calibration-mode", calibration_mode,
         "independent: all sites are fitted on one pass of the original model; sequential: each site is fitted\n"
         "on the corrected stream; drift: the same, towards the original stream; auto: drift for --correction lra,\n"
         "but independent with --split, --save-gram, --load-gram or --lra budget:N, and for other corrections.\n"
         "Only lra takes a mode")
      ->capture_default_str();
  app.add_option("--token-weight", token_weight,
                 "weights of the tokens in the fit: none, or a comma-separated list of norm (1 / mean square of the\n"
                 "block's output), first:W (first token of a sample) and massive:W (tokens with a massive activation)")
      ->capture_default_str();
  app.add_option("--heal", heal,
                 "fit projections of the kept blocks behind the first removed one again, towards the original stream:\n"
                 "down (the MLP's down projections), all (the attention's output projections too) or off")
      ->capture_default_str();
  app.add_flag("--span", span, "fit one adapter per run of neighbouring removed layers or halves, over the whole run");
  app.add_flag("--gate", gate, "drop each correction without which the loss on held-out calibration text is lower");
  app.add_option(
      "--calib", calib,
      "calibration text: FILE, or c4, wikitext2, alpaca or code-alpaca, which are pulled from the Hugging Face hub if\n"
      "they are not there; or several with commas between them, in turns; with [:samples[xtokens]], by default "
      "256x512\n"
      "(default: c4,wikitext2,alpaca,code-alpaca, and c4 with --recipe paper; the demo model has its own text)");
  app.add_option("--save-gram", save_gram,
                 "save the calibration sums to this file; an interrupted calibration continues from it")
      ->check(FileOutput());
  app.add_option("--gram-layers", gram_layers, "layers whose sums --save-gram saves")
      ->check(CLI::IsMember({"removed", "all"}))
      ->capture_default_str();
  app.add_option("--load-gram", load_gram,
                 "fit from the total of the sums in these files, without a pass over calibration text");
  app.add_option("--lambda", lambda,
                 "ridge penalty: gcv or holdout (chosen per site), a number, or NUMBERrel (times the mean diagonal)")
      ->capture_default_str();
  app.add_flag("--penalize-bias", penalize_bias, "penalise the bias too, as in the paper's main text");
  app.add_option(
         "--factorize", factorize,
         "rrr: the best map of that rank on the data; svd: truncated SVD, as in the paper; svd-refit: the same\n"
         "with a refitted bias")
      ->capture_default_str();
  app.add_option("--merge", merge, "merge neighbouring adapters into one: off, full or lowrank")->capture_default_str();
  const std::vector<CLI::Option*> all = app.get_options();
  added.assign(all.begin() + others, all.end());
}

void RecipeOptions::TakeNamed(CLI::App& app) const {
  if (!named.empty()) TakeRecipe(app, named);
}

Recipe RecipeOptions::Parse(uint64_t seed) const {
  Recipe recipe = {.prune = ParsePrune(prune),
                   .correction = correction,
                   .rank = ParseRank(lra),
                   .lambda = ParseLambda(lambda),
                   .penalize_bias = penalize_bias,
                   .factorization = ParseFactorization(factorize),
                   .mode = ParseCalibrationMode(calibration_mode),
                   .weighting = ParseTokenWeights(token_weight),
                   .span = span,
                   .gate = gate,
                   .heal = ParseHeal(heal),
                   .merge = ParseMerge(merge),
                   .seed = seed};
  recipe.gram.load.assign(load_gram.begin(), load_gram.end());
  recipe.gram.save = save_gram;
  recipe.gram.all_layers = gram_layers == "all";
  for (const CLI::Option* option : added)
    for (const auto& [name, field] : {std::pair("lra", "rank"), {"factorize", "factorization"}, {"lambda", "lambda"}})
      if (option->count() > 0 && option->check_lname(name)) CheckGiven(recipe, field);
  if (recipe.gram.all_layers && save_gram.empty()) FailUsage("--gram-layers goes with --save-gram FILE");
  return recipe;
}

CalibrationSpec RecipeOptions::Text(const Recipe& recipe, const LanguageModel& model,
                                    const CommonOptions& common) const {
  if (calib.empty() && !ReadsText(recipe)) return {};
  return CalibrationFor(calib, model, common, named.empty() ? "" : FindNamedRecipe(named).text);
}

}  // namespace shiftrt
