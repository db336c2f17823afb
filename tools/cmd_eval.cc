#include <CLI/CLI.hpp>
#include <algorithm>

#include "runtime/check.h"
#include "tools/evaluation.h"
#include "tools/options.h"
#include "tools/recipe.h"

namespace shiftrt {

namespace {

struct EvalCommandOptions {
  CommonOptions common;
  EvaluationOptions evaluation;
  RecipeOptions recipe{.prune = ""};
  std::vector<std::string> variants;
};

// What is compared, and the criterion for the paper's numbers.
struct Contest {
  std::vector<EvalVariant> variants;
  std::string criterion;
};

nlohmann::json RecordOf(const Model& model) {
  return model.provenance.empty() ? nlohmann::json() : nlohmann::json::parse(model.provenance);
}

// A text of a saved model's own record, "" where there is none.
std::string Recorded(const nlohmann::json& record, const char* pointer) {
  const nlohmann::json::json_pointer at(pointer);
  return record.contains(at) && record[at].is_string() ? record[at].get<std::string>() : "";
}

// What VariantNames() calls the plan that was saved.
std::string CorrectionName(const nlohmann::json& record) {
  const std::string merge = Recorded(record, "/provenance/merge");
  if (!merge.empty() && ParseMerge(merge) != Merge::kOff) return "merged";
  const std::string correction = Recorded(record, "/provenance/correction");
  return correction.empty() || correction == "auto" ? "lra" : correction;
}

// The variants a model directory holds: all its blocks ("original", where the plan runs less than the checkpoint has),
// the plan without its corrections ("pruned"), the plan ("lra", another correction's name, or "merged").
std::vector<EvalVariant> SavedVariants(const Model& model) {
  const int64_t layers = model.weights->config.layers;
  std::vector<EvalVariant> variants;
  if (model.provenance.empty() || model.plan.Uncorrected() != DepthPlan::Original(layers))
    variants.push_back({"original", DepthPlan::Original(layers)});
  if (model.provenance.empty()) return variants;
  variants.push_back({"pruned", model.plan.Uncorrected()});
  if (model.plan != model.plan.Uncorrected()) variants.push_back({CorrectionName(RecordOf(model)), model.plan});
  return variants;
}

void CheckNames(const std::vector<std::string>& names, const std::vector<std::string>& known) {
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      FailUsage("--variants {}: only {} here", name, fmt::join(known, ", "));
}

// Those the user named, in that order; all where none is named.
std::vector<EvalVariant> Chosen(const std::vector<EvalVariant>& variants, const std::vector<std::string>& names) {
  if (names.empty()) return variants;
  std::vector<std::string> known;
  for (const EvalVariant& variant : variants) known.push_back(variant.name);
  CheckNames(names, known);
  std::vector<EvalVariant> chosen;
  for (const std::string& name : names)
    chosen.push_back(variants[std::find(known.begin(), known.end(), name) - known.begin()]);
  return chosen;
}

// By which a saved model's layers were removed, as PaperCriterion has it.
std::string SavedCriterion(const Model& model) {
  const Selection selection{Recorded(RecordOf(model), "/provenance/selection/criterion"), {}, model.removed};
  return PaperCriterion(selection, model.plan.blocks() + std::ssize(model.removed));
}

// A directory's own variants, or those of the recipe where one is given.
Contest Enter(const EvalCommandOptions& options, const Context& context, const Model& model, Progress& progress) {
  if (options.recipe.prune.empty()) return {SavedVariants(model), SavedCriterion(model)};
  if (!model.provenance.empty())
    FailUsage("{} is already pruned; give the model it was made from, or leave --prune out", options.common.model);
  const ShiftOptions shift = options.recipe.Parse(options.common.seed);
  CheckNames(options.variants, VariantNames(shift));
  CheckRank(shift.fit.rank, model.weights->config.hidden);
  const CalibrationSet calibration = options.recipe.OpenText(model, options.common.seed);
  const ShiftResult result = Shift({context, model, calibration, progress}, shift);
  fmt::print("layers removed by {}: {}\n", result.selection.criterion, fmt::join(result.selection.removed, ", "));
  return {VariantsOf(model, result, shift), PaperCriterion(result.selection, model.weights->config.layers)};
}

int Run(const EvalCommandOptions& options) {
  const std::vector<Dataset> datasets = options.evaluation.Load();
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const auto progress = options.common.MakeProgress();
  const Contest contest = Enter(options, context, model, *progress);
  const nlohmann::json json = RunEvaluation(context, model, Chosen(contest.variants, options.variants),
                                            contest.criterion, datasets, options.evaluation, *progress);
  options.common.WriteJson(json);
  return 0;
}

}  // namespace

Command AddEval(CLI::App& app) {
  auto options = std::make_shared<EvalCommandOptions>();
  options->common.AddTo(app, /*with_json=*/true);
  std::string names;
  for (const Task& task : Tasks())
    names += fmt::format("\n  {:<15}{:<18}{:>6} rows  {}", task.name, task.title, task.rows, task.metric);
  options->evaluation.AddTo(app, "--tasks");
  app.add_option("--variants", options->variants,
                 "of original, pruned, lra and merged; the first is what the others are compared to (default: all)")
      ->delimiter(',');
  CLI::Option_group& recipe = *app.add_option_group("Recipe", "to prune and repair the model first, as `run` does");
  options->recipe.AddTo(recipe);
  options->common.AddMemoryTo(recipe);
  CLI::Option* const prune = recipe.get_option("--prune");
  for (CLI::Option* option : recipe.get_options())
    if (option != prune) option->needs(prune);
  app.footer("Tasks:" + names +
             "\n\nExamples:\n  shiftrt eval --model qwen2-1.5b --tasks paper7 --data ~/data --json result.json\n"
             "  shiftrt eval --model out --tasks boolq,arc_challenge --variants original,lra --limit 200\n"
             "  shiftrt eval --model qwen2-1.5b --prune bi:0.25 --lra 64 --calib c4.jsonl --data ~/data\n"
             "  shiftrt eval --model qwen2-1.5b --tasks mmlu --shots 5 --data ~/data\n"
             "  shiftrt eval --model demo --tasks piqa --data piqa=valid.jsonl --items scores.jsonl");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
