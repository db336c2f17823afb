// SPDX-License-Identifier: Apache-2.0
#include "tools/recipe.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "api/repair.h"
#include "runtime/check.h"
#include "shift/recipe_fields.h"
#include "tools/fields.h"
#include "tools/find_option.h"
#include "tools/options.h"
#include "tools/selection.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

// The options of the settings, with the text of --help for each. A setting that is not here has no option.
struct SettingHelp {
  std::string_view field, text;
  std::string (*more)() = nullptr;  // lines that follow
};
constexpr SettingHelp kHelp[] = {
    {"prune",
     "layers to remove: CRITERION:AMOUNT[,keep=first:N,last:N][,unit=half] or layers=3.attn,5,8-10 (default with\n"
     "--split, --save-gram and --load-gram: bi:0.25). An amount is a share of the layers (0.25), a number of layers\n"
     "(8), what is to stay without adapters (params=6.3B or bytes=12GiB), or max-kl=0.2: as many as leave the\n"
     "repaired model within this divergence from the original, nats per token of held-out calibration text. With\n"
     "unit=half every criterion but prune-comp scores attention and MLP of a block apart; a share then removes\n"
     "halves of no more bytes than those blocks have, a number counts halves, and angular and streamline remove\n"
     "consecutive halves. Half blocks leave as hf-lra, and from Llama, Mistral and Qwen 2 as gguf"},
    {"rank", "rank of the adapters: a number, full, energy:SHARE (of each fit) or budget:PARAMETERS (of all adapters)"},
    {"correction", "what replaces the removed blocks (default: joint, or lra with an option that joint does not take):",
     CorrectionsHelp},
    {"mode",
     "independent: all sites are fitted on one pass of the original model; sequential: each site is fitted\n"
     "on the corrected stream; drift: the same, towards the original stream; auto: drift for --correction lra,\n"
     "but independent with --split, --save-gram, --load-gram or --lra budget:N, and for other corrections.\n"
     "Only lra takes a mode"},
    {"weighting",
     "weights of the tokens in the fit: none, or a comma-separated list of norm (1 / mean square of the\n"
     "block's output), first:W (first token of a sample) and massive:W (tokens with a massive activation)"},
    {"heal",
     "fit projections of the kept blocks after the first removed one again, towards the original stream:\n"
     "down (the MLP's down projections), all (the attention's output projections too) or off"},
    {"span", "fit one adapter per run of neighbouring removed layers or halves, over the whole run"},
    {"gate", "drop each correction without which the loss on held-out calibration text is lower"},
    {"lambda", "ridge penalty: gcv or holdout (chosen per site), a number, or NUMBERrel (times the mean diagonal)"},
    {"penalize_bias", "penalise the bias too, as in the paper's main text"},
    {"factorization",
     "rrr: the best map of that rank on the data; svd: truncated SVD, as in the paper; svd-refit: the same\n"
     "with a refitted bias"},
    {"merge", "merge neighbouring adapters into one: off, full or lowrank"},
    {"quantize",
     "round the weights to types of fewer bits: MIXTURE[,nearest|importance|feedback][,before|after] or off.\n"
     "feedback makes each number good for the errors of those before it, on calibration text; before fits the\n"
     "repair to the rounded blocks, if the correction is fitted in sequence, and after rounds the repaired model. The\n"
     "mixtures are those of GGUF files:",
     MixturesHelp},
};

}  // namespace

RecipeWords DefaultWords() {
  RecipeWords words;
  const Recipe recipe;
  for (const RecipeField& field : RecipeFields()) words[field.name] = field.words(recipe);
  words["correction"] = "";  // the recipe chooses
  return words;
}

void RecipeOptions::AddTo(CLI::App& app) {
  app.add_option("--recipe", named,
                 "a named set of options; an option given with it must have the same value (--prune is free):" +
                     NamedRecipesHelp());
  for (const auto& [field, text, more] : kHelp) {
    const std::string help = fmt::format("{}{}", text, more == nullptr ? "" : more());
    given.emplace_back(field, AddField(FieldNamed(field).kind, FlagNamed(field), help, words.at(field), app));
  }
  for (const RecipeField& field : RecipeFields())  // --seed and --calib set the two others
    Check(
        field.name == "seed" || field.name == "text" || std::ranges::count(kHelp, field.name, &SettingHelp::field) > 0,
        "the setting {} has no option", field.name);
  AddYes(app, yes);
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
}

void RecipeOptions::TakeNamed(CLI::App& app, bool split) {
  const bool given = app.count("--prune") > 0;
  if (!named.empty()) TakeRecipe(app, named);
  // No process of a split model has the streams before and after several blocks, and a file of sums has scores of
  // single blocks only.
  constexpr std::string_view kRuns = "streamline:", kBlocks = "bi:";
  std::string& prune = words.at("prune");
  if (!given && (split || !load_gram.empty() || !save_gram.empty()) && prune.starts_with(kRuns))
    prune.replace(0, kRuns.size(), kBlocks);
}

Recipe RecipeOptions::Parse(uint64_t seed) const {
  Recipe recipe;
  for (const auto& [field, option] : given)
    if (const std::string& text = words.at(field); !text.empty()) Set(field, text, recipe);
  recipe.seed = seed;
  recipe.gram.load.assign(load_gram.begin(), load_gram.end());
  recipe.gram.save = save_gram;
  recipe.gram.all_layers = gram_layers == "all";
  for (const auto& [field, option] : given)
    if (option->count() > 0) CheckGiven(recipe, field);
  if (recipe.gram.all_layers && save_gram.empty()) FailUsage("--gram-layers goes with --save-gram FILE");
  return recipe;
}

CalibrationSpec RecipeOptions::Text(const Recipe& recipe, const LanguageModel& model,
                                    const CommonOptions& common) const {
  if (calib.empty() && !ReadsText(recipe)) return {};
  return CalibrationFor(calib, model, common, named.empty() ? "" : FindNamedRecipe(named).text);
}

std::string NamedRecipesHelp() {
  std::string text;
  for (const NamedRecipe& recipe : NamedRecipes())
    text += fmt::format("\n{:<10}{}; at run time: {}", recipe.name, recipe.summary, recipe.cost);
  return text;
}

std::vector<CLI::Option*> TakeRecipe(CLI::App& app, const std::string& name) {
  const NamedRecipe& recipe = FindNamedRecipe(name);
  std::vector<std::pair<const char*, const char*>> settings = recipe.settings;
  if (*recipe.recover != '\0') {
    if (FindOption(app, "--recover") == nullptr)
      FailUsage("--recipe {}: it trains the repaired model, which only `shiftrt run` does", name);
    settings.emplace_back("budget", recipe.recover);
  }
  std::vector<CLI::Option*> taken;
  for (const auto& [field, value] : settings) {
    CLI::Option* const option = OptionOf(field, app);
    if (option == nullptr) continue;  // a flag that this command does not have
    if (option->count() == 0) {
      if (value == std::string_view("false")) continue;
      option->add_result(value);
      option->run_callback();
      taken.push_back(option);
      continue;
    }
    const std::string given = fmt::format("{}", fmt::join(option->results(), ","));
    // A recipe chooses neither the layers nor how long the training takes, if the user does.
    if (given == value || field == std::string_view("prune") || field == std::string_view("budget")) continue;
    const bool flag = value == std::string_view("false");
    FailUsage("{}{}: --recipe {} has {}; leave out one of the two", option->get_name(), flag ? "" : " " + given, name,
              flag ? "none of it" : fmt::format("{} {}", option->get_name(), value));
  }
  return taken;
}

}  // namespace shiftrt
