// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "shiftrt/evaluate.h"
#include "shiftrt/repair.h"
#include "tools/evaluation.h"
#include "tools/kept_fit.h"
#include "tools/options.h"
#include "tools/outputs.h"
#include "tools/recipe.h"
#include "tools/report_output.h"
#include "tools/selection.h"
#include "tools/standard_output.h"

namespace shiftrt {

namespace {

struct EvalCommandOptions {
  CommonOptions common;
  EvaluationOptions evaluation{"paper7"};
  RecipeOptions recipe;
  std::vector<std::string> variants, with;
  std::string original, report;
};

void CheckNames(const std::vector<std::string>& names, const std::vector<std::string>& known) {
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      FailUsage("--variants {}: only {} here", name, fmt::join(known, ", "));
  for (const std::string& name : names)
    if (std::count(names.begin(), names.end(), name) > 1) FailUsage("--variants: {} is named twice", name);
}

// Those the user named, in that order; all where none is named.
std::vector<ModelVariant> Chosen(const std::vector<ModelVariant>& variants, const std::vector<std::string>& names) {
  if (names.empty()) return variants;
  std::vector<std::string> known;
  known.reserve(variants.size());
  for (const ModelVariant& variant : variants) known.push_back(variant.name);
  CheckNames(names, known);
  std::vector<ModelVariant> chosen;
  chosen.reserve(names.size());
  for (const std::string& name : names)
    chosen.push_back(variants[std::find(known.begin(), known.end(), name) - known.begin()]);
  return chosen;
}

// Throws UsageError for a name that a variant has already; `instead` says what to do.
void CheckNew(const std::string& name, const std::vector<ModelVariant>& variants, const std::string& option,
              const char* instead) {
  for (const ModelVariant& variant : variants)
    if (variant.name == name) FailUsage("{}: there is a variant {} already; {}", option, name, instead);
}

// The repair of a recipe and its fit, which is kept until the command is done.
struct Repairing {
  Repairing(const LanguageModel& model, const Recipe& recipe, const Resources& resources, bool first)
      : job(model, recipe, resources), fit(job, recipe, first) {}

  RepairJob job;
  CommandFit fit;
};

// Throws UsageError for what can be refused before any text is read.
void CheckRepair(const LanguageModel& model, const Recipe& recipe, const EvalCommandOptions& options) {
  if (model.MadeBy() != nullptr)
    FailUsage("{} is already pruned or fine-tuned; give the model it was made from, or leave --prune out",
              options.common.model);
  std::vector<std::string> known = VariantNames(recipe);
  for (const std::string& directory : options.with) known.push_back(NameOfDirectory(directory));
  CheckNames(options.variants, known);
  CheckRecipe(model, recipe);
  CheckRemoval(model, recipe.prune, options.recipe.yes);
}

int Run(const EvalCommandOptions& options) {
  const bool repairs = !options.recipe.words.at("prune").empty();
  Recipe recipe = repairs ? options.recipe.Parse(options.common.seed) : Recipe();
  const Resources resources = options.common.MakeResources();
  const bool first = options.common.processes->first();
  const LanguageModel model = options.common.OpenLanguageModel();
  if (repairs) {
    recipe.correction = CorrectionName(model, recipe);
    CheckRepair(model, recipe, options);
  }
  const Suites suites = options.evaluation.Load(options.common);
  const auto progress = options.common.MakeProgress();
  std::vector<ModelVariant> variants;
  PaperSetting paper;
  std::optional<Repairing> repairing;
  if (!repairs) {
    variants = SavedVariants(model);
    // With --original, a model that shiftrt has not saved is not the original one.
    if (!options.original.empty() && model.MadeBy() == nullptr)
      variants.front().name = variants.front().label = NameOfDirectory(options.common.model);
    paper = PaperSettingOf(model);
  } else {
    recipe.text = options.recipe.Text(recipe, model, options.common);
    const RepairResult repair = repairing.emplace(model, recipe, resources, first).fit.Run(*progress);
    const Selection& selection = repair.report.selection;
    fmt::print("layers {}: {}\n", RemovedBy(selection), Names(selection.removed));
    variants = repair.variants;
    paper = PaperSettingOf(model, selection.criterion, selection.removed);
  }
  for (const std::string& directory : options.with) {
    const std::string name = NameOfDirectory(directory);
    CheckNew(name, variants, "--with " + directory, "rename the directory");
    variants.push_back({name, name, model.WithSaved(directory)});
  }
  variants = Chosen(variants, options.variants);
  if (!options.original.empty()) {
    CommonOptions common = options.common;
    common.model = options.original;
    const LanguageModel original = common.OpenLanguageModel();
    const std::string name = original.MadeBy() != nullptr ? NameOfDirectory(options.original) : "original";
    CheckNew(name, variants, "--original " + options.original, "name the others with --variants");
    variants.insert(variants.begin(), {name, name, original});
  }
  const EvaluationResult result = RunEvaluation({variants, paper, resources, *progress}, suites, options.evaluation);
  options.common.WriteJson(result.json);
  if (first && !options.report.empty())
    WriteReport({fmt::format("{}: zero-shot suites", model.Name()), options.evaluation.tasks(), {result.section}},
                options.report);
  RequireStandardOutput();
  if (repairing) repairing->fit.Done();
  RemoveJournal(result.journal);
  return 0;
}

}  // namespace

Command AddEval(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<EvalCommandOptions>();
  options->common = CommonOptions(processes);
  options->common.AddTo(app);
  options->common.AddLoraTo(app);
  options->common.AddSplitTo(app);
  options->common.AddOutputTo(app);
  std::string names;
  for (const SuiteName& task : SuiteNames())
    names += fmt::format("\n  {:<20}{:<18}{:>6} rows  {}", task.name, task.title, task.items, task.quoted_metric);
  options->evaluation.AddTo(app, "--tasks");
  app.add_option(
         "--variants", options->variants,
         "of original, pruned, lra (or another correction's name), merged and the names of --with; the others are\n"
         "compared with the first (default: all)")
      ->delimiter(',');
  app.add_option("--with", options->with,
                 "directories that --save wrote, of plans for the same weights: each is scored too, as a variant with\n"
                 "the directory's name, over one copy of the weights")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
  CLI::Option* const original = app.add_option(
      "--original", options->original,
      "the model that the one of --model was made from, which is scored first, so that the others are compared\n"
      "with it item by item. A fine-tuned model that was saved with its weights has no other original");
  AddReport(app, options->report, "write an HTML page with the tables of means to this directory");
  CLI::Option_group& recipe = *app.add_option_group("Recipe", "prune and repair the model first, as run does");
  options->recipe.words.at("prune").clear();  // nothing is removed
  options->recipe.AddTo(recipe);
  options->common.AddSeedTo(recipe, "calibration samples and random selection");
  options->common.AddMemoryTo(recipe);
  CLI::Option* const prune = recipe.get_option("--prune");
  for (CLI::Option* option : recipe.get_options())
    if (option != prune) option->needs(prune);
  prune->excludes(app.get_option("--lora"));
  prune->excludes(original);
  app.footer("Tasks:" + names +
             "\n\nExamples:\n  shiftrt eval --model qwen2-1.5b --tasks paper7 --data ~/data --json result.json\n"
             "  shiftrt eval --model out --tasks boolq,arc_challenge --variants original,lra --limit 200\n"
             "  shiftrt eval --model qwen2-1.5b --with pruned repaired tuned --variants pruned,repaired,tuned\n"
             "  shiftrt eval --model tuned --original qwen2-1.5b --tasks small4 --data ~/data --report page\n"
             "  shiftrt eval --model qwen2-1.5b --prune bi:0.25 --lra 64 --calib c4.jsonl --data ~/data\n"
             "  shiftrt eval --model qwen2-1.5b --prune bi:0.25 --recipe paper --calib c4.jsonl --data ~/data\n"
             "  shiftrt eval --model qwen2-1.5b --tasks mmlu --shots 5 --data ~/data\n"
             "  shiftrt eval --model demo --tasks piqa --data piqa=valid.jsonl --items scores.jsonl\n"
             "  mpirun -n 8 shiftrt eval --model out --tasks paper7 --data data    (docs/scale.md)\n"
             "  mpirun -n 4 shiftrt eval --model Llama-2-70b-hf --tasks paper7 --data data --split 4");
  return [options, &app] {
    options->recipe.TakeNamed(app, options->common.split != 1);
    return Run(*options);
  };
}

}  // namespace shiftrt
