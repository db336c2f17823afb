// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/adapted.h"
#include "runtime/check.h"
#include "tools/evaluation.h"
#include "tools/kept_fit.h"
#include "tools/options.h"
#include "tools/recipe.h"
#include "tools/variants.h"

namespace shiftrt {

namespace {

struct EvalCommandOptions {
  CommonOptions common;
  EvaluationOptions evaluation;
  RecipeOptions recipe{.prune = ""};
  std::vector<std::string> variants, beside;
  std::string original, report;
};

// The variants that are compared, and the setting of the paper whose numbers are shown next to them.
struct Contest {
  std::vector<Variant> variants;
  PaperSetting paper;
  std::unique_ptr<CommandFit> fit = nullptr;  // where a recipe is given
};

void CheckNames(const std::vector<std::string>& names, const std::vector<std::string>& known) {
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      FailUsage("--variants {}: only {} here", name, fmt::join(known, ", "));
  for (const std::string& name : names)
    if (std::count(names.begin(), names.end(), name) > 1) FailUsage("--variants: {} is named twice", name);
}

std::string NameOfDirectory(const std::string& directory) {
  return (std::filesystem::absolute(directory) / "").lexically_normal().parent_path().filename();
}

// Those the user named, in that order; all where none is named.
std::vector<Variant> Chosen(const std::vector<Variant>& variants, const std::vector<std::string>& names) {
  if (names.empty()) return variants;
  std::vector<std::string> known;
  known.reserve(variants.size());
  for (const Variant& variant : variants) known.push_back(variant.name);
  CheckNames(names, known);
  std::vector<Variant> chosen;
  chosen.reserve(names.size());
  for (const std::string& name : names)
    chosen.push_back(variants[std::find(known.begin(), known.end(), name) - known.begin()]);
  return chosen;
}

// A directory's own variants, or those of the recipe where one is given.
Contest Enter(const EvalCommandOptions& options, const Context& context, const Model& model, Progress& progress) {
  if (options.recipe.prune.empty()) return {SavedVariants(model), PaperSettingOf(model)};
  if (model.provenance)
    FailUsage("{} is already pruned; give the model it was made from, or leave --prune out", options.common.model);
  const ShiftOptions shift = options.recipe.Parse(options.common.seed);
  std::vector<std::string> known = VariantNames(shift);
  for (const std::string& directory : options.beside) known.push_back(NameOfDirectory(directory));
  CheckNames(options.variants, known);
  CheckOptions(shift, model.weights->config);
  const CalibrationSet calibration = options.recipe.OpenText(shift, model, options.common, context.device);
  context.processes->CheckSame("calibration text (hash)", calibration.hash);
  const ShiftJob job = {context, model, calibration, progress};
  auto fit = std::make_unique<CommandFit>(job, shift);
  const ShiftResult result = fit->Get(job, shift);
  const Selection& selection = result.selection;
  fmt::print("layers removed by {}: {}\n", selection.criterion, Names(selection.removed));
  return {VariantsOf(model, result, shift),
          PaperSettingOf(model, selection.criterion, selection.removed, model.weights->config.layers), std::move(fit)};
}

// Adds the saved models that were named with --with, each by its directory's name.
void AddSaved(const std::vector<std::string>& directories, const Weights& weights, std::vector<Variant>& variants) {
  for (const std::string& directory : directories) {
    const std::string name = NameOfDirectory(directory);
    for (const Variant& variant : variants)
      if (variant.name == name)
        FailUsage("--with {}: there is a variant {} already; rename the directory", directory, name);
    variants.push_back({VariantKind::kCorrected, name, name, OpenSavedPlan(directory, weights)});
  }
}

int Run(const EvalCommandOptions& options) {
  const std::vector<Dataset> datasets = options.evaluation.Load(options.common);
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const auto progress = options.common.MakeProgress();
  Contest contest = Enter(options, context, model, *progress);
  AddSaved(options.beside, *model.weights, contest.variants);
  const std::vector<Variant> variants = Chosen(contest.variants, options.variants);
  EvaluationJob job = {context, model, variants, contest.paper, *progress};
  std::optional<Model> original;
  if (!options.original.empty()) {
    CommonOptions common = options.common;
    common.model = options.original;
    job.original = &original.emplace(common.Open());
    if (original->provenance) job.original_name = NameOfDirectory(options.original);
    for (const Variant& variant : variants)
      if (variant.name == job.original_name)
        FailUsage("--original {}: there is a variant {} already; name the others with --variants", options.original,
                  variant.name);
  }
  const EvaluationResult result = RunEvaluation(job, datasets, options.evaluation);
  options.common.WriteJson(result.json);
  if (context.processes->first() && !options.report.empty()) {
    WritePage({fmt::format("{}: zero-shot suites", model.name), options.evaluation.tasks, {result.section}},
              options.report);
    fmt::print("report: {}/index.html\n", options.report);
  }
  if (contest.fit) contest.fit->Done();
  return 0;
}

}  // namespace

Command AddEval(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<EvalCommandOptions>();
  options->common = CommonOptions(processes);
  options->common.AddTo(app);
  options->common.AddLoraTo(app);
  options->common.AddSplitTo(app);
  options->common.AddQuietTo(app);
  options->common.AddJsonTo(app);
  std::string names;
  for (const Task& task : Tasks())
    names += fmt::format("\n  {:<15}{:<18}{:>6} rows  {}", task.name, task.title, task.rows, task.metric);
  options->evaluation.AddTo(app, "--tasks");
  app.add_option(
         "--variants", options->variants,
         "of original, pruned, lra (or another correction's name), merged and the names of --with; the others are\n"
         "compared with the first (default: all)")
      ->delimiter(',');
  app.add_option("--with", options->beside,
                 "directories that --save wrote, of plans for the same weights: each is scored too, as a variant with\n"
                 "the directory's name, over one copy of the weights")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
  CLI::Option* const original = app.add_option(
      "--original", options->original,
      "the model that the one of --model was made from, which is scored first, so that the others are compared\n"
      "with it item by item. A fine-tuned model that was saved with its weights has no other original");
  app.add_option("--report", options->report, "write an HTML page with the tables of means to this directory")
      ->check(DirectoryOutput());
  CLI::Option_group& recipe = *app.add_option_group("Recipe", "prune and repair the model first, as run does");
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
    options->recipe.TakeNamed(app);
    return Run(*options);
  };
}

}  // namespace shiftrt
