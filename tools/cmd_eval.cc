#include <CLI/CLI.hpp>
#include <algorithm>

#include "runtime/check.h"
#include "runtime/files.h"
#include "tools/evaluation.h"
#include "tools/options.h"

namespace shiftrt {

namespace {

struct Options {
  CommonOptions common;
  EvaluationOptions evaluation;
  std::vector<std::string> variants;
};

// The variants a model directory holds: all its blocks ("original", where the checkpoint has more than the plan runs),
// the plan without its adapters ("pruned"), the plan ("lra").
std::vector<EvalVariant> Variants(const Model& model) {
  DepthPlan pruned = model.plan;
  std::erase_if(pruned.stages, [](const Stage& stage) { return std::holds_alternative<AdapterStage>(stage); });
  const int64_t layers = model.weights->config.layers;
  std::vector<EvalVariant> variants;
  if (model.provenance.empty() || pruned.blocks() < layers)
    variants.push_back({"original", DepthPlan::Original(layers)});
  if (!model.provenance.empty()) {
    const bool adapted = pruned.stages.size() < model.plan.stages.size();
    variants.push_back({"pruned", std::move(pruned)});
    if (adapted) variants.push_back({"lra", model.plan});
  }
  return variants;
}

// Those the user named, in that order; all where none is named.
std::vector<EvalVariant> Chosen(const std::vector<EvalVariant>& variants, const std::vector<std::string>& names) {
  if (names.empty()) return variants;
  std::vector<EvalVariant> chosen;
  for (const std::string& name : names) {
    const auto at =
        std::find_if(variants.begin(), variants.end(), [&](const EvalVariant& v) { return v.name == name; });
    if (at == variants.end()) {
      std::vector<std::string> known;
      for (const EvalVariant& variant : variants) known.push_back(variant.name);
      FailUsage("--variants {}: this model has {}", name, fmt::join(known, ", "));
    }
    chosen.push_back(*at);
  }
  return chosen;
}

// What a saved model's own record says.
std::string CriterionOf(const Model& model) {
  if (model.provenance.empty()) return "";
  const nlohmann::json record = nlohmann::json::parse(model.provenance);
  const auto criterion = nlohmann::json::json_pointer("/provenance/selection/criterion");
  if (!record.contains(criterion) || !record[criterion].is_string()) return "";
  const auto removed = std::ssize(model.removed);
  return PaperCriterion(record[criterion], removed, model.plan.blocks() + removed);
}

int Run(const Options& options) {
  ParseTasks(options.evaluation.tasks);  // a misspelt name is found before the weights are opened
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const std::vector<EvalVariant> variants = Chosen(Variants(model), options.variants);
  const auto progress = options.common.MakeProgress();
  const nlohmann::json json =
      RunEvaluation(context, model, variants, CriterionOf(model), options.evaluation, *progress);
  if (!options.common.json.empty()) {
    AtomicFile file(options.common.json);
    file.Write(json.dump(2) + "\n");
    file.Commit();
  }
  return 0;
}

}  // namespace

Command AddEval(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->common.AddTo(app, /*with_json=*/true);
  std::string names;
  for (const Task& task : Tasks())
    names += fmt::format("\n  {:<15}{:<18}{:>6} rows  {}", task.name, task.title, task.rows, task.metric);
  app.add_option("--tasks", options->evaluation.tasks, "names with commas between; paper7: the first seven; all")
      ->capture_default_str();
  options->evaluation.AddTo(app);
  app.add_option("--variants", options->variants,
                 "of original, pruned, lra; the first is what the others are compared to")
      ->delimiter(',');
  app.footer("Tasks:" + names +
             "\n\nExamples:\n  shiftrt eval --model qwen2-1.5b --tasks paper7 --data ~/data --json result.json\n"
             "  shiftrt eval --model out --tasks boolq,arc_challenge --variants original,lra --limit 200\n"
             "  shiftrt eval --model qwen2-1.5b --tasks mmlu --shots 5 --data ~/data\n"
             "  shiftrt eval --model demo --tasks piqa --data piqa=valid.jsonl --items scores.jsonl");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
