// SPDX-License-Identifier: Apache-2.0
#include "tools/evaluation.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/impl.h"
#include "eval/item_log.h"
#include "eval/summary.h"
#include "runtime/files.h"
#include "tools/cache.h"
#include "tools/evaluation_output.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/table.h"
#include "tools/variants.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kProtocol = "lm-evaluation-harness 0.4";

// The file in which an evaluation of these tasks and variants records what it has done: the one that the user named, or
// one in the cache that the same command finds again.
std::filesystem::path JournalFile(const EvaluationOptions& options, const Model& model,
                                  const std::vector<Variant>& variants, const Model* original) {
  if (!options.journal.empty()) return options.journal;
  std::string what = fmt::format("{} {} {} {} {} {}", model.directory.string(), options.tasks, options.shots,
                                 options.limit, options.bos, fmt::join(options.data, " "));
  if (original != nullptr) what += " " + original->directory.string();
  for (const Variant& variant : variants) what += fmt::format(" {} {}", variant.name, variant.plan.Fingerprint());
  return CachePath("eval-" + HashHex(what) + ".jsonl");
}

}  // namespace

void EvaluationOptions::AddTasksTo(CLI::App& app, const std::string& flag) {
  CLI::Option* const names =
      app.add_option(flag, tasks, "zero-shot suites: a comma-separated list of names, paper7, small4 or all");
  if (!tasks.empty()) names->capture_default_str();
  const auto add = [&](CLI::Option* option) {
    if (tasks.empty()) option->needs(names);
    return option;
  };
  add(app.add_option("--data", data,
                     "directory with the files of the data sets, or TASK=FILE; may be repeated. Without it, and for\n"
                     "what it lacks, they are pulled from the Hugging Face hub (docs/pull.md)"));
  add(app.add_option("--shots", shots, "number of solved rows before each question")->check(CLI::Range(0, 100)))
      ->capture_default_str();
  add(app.add_option("--limit", limit, "only the first N rows per task, or per subject; 0: all")
          ->check(CLI::Range(0, 1 << 30)))
      ->capture_default_str();
  add(app.add_option("--bos", bos, "whether a BOS token begins every text; auto: as the tokenizer says")
          ->check(CLI::IsMember({"auto", "always", "never"})))
      ->capture_default_str();
}

void EvaluationOptions::AddTo(CLI::App& app, const std::string& flag) {
  AddTasksTo(app, flag);
  const auto add = [&](CLI::Option* option) {
    if (tasks.empty()) option->needs(app.get_option(flag));
    return option;
  };
  add(app.add_option("--metrics", metrics, "metrics to report: the one that the paper quotes, or all")
          ->check(CLI::IsMember({"paper", "all"})))
      ->capture_default_str();
  add(app.add_option("--items", items, "write prompts and scores to this file, one JSON line per item"))
      ->check(FileOutput());
  add(app.add_option("--journal", journal,
                     "file that records finished batches, from which an interrupted evaluation continues; removed at\n"
                     "the end (default: a file in ~/.cache/shiftrt)"));
}

std::vector<Dataset> EvaluationOptions::Load(const CommonOptions& common) const {
  std::vector<Dataset> datasets;
  const std::vector<const Task*> named = ParseTasks(tasks);
  const DataOptions options = {data, limit, shots};
  common.processes->FirstBeforeOthers([&] {
    PullMissingRows(named, options, common.offline, common.quiet);
    return true;
  });
  datasets.reserve(named.size());
  for (const Task* task : named) datasets.push_back(LoadDataset(*task, options));
  return datasets;
}

EvalOptions EvaluationOptions::Scoring() const { return {.bos = ParseBos(bos)}; }

EvaluationResult RunEvaluation(const EvaluationJob& job, const std::vector<Dataset>& datasets,
                               const EvaluationOptions& options) {
  const Context& context = job.context;
  const Model& model = job.model;
  std::vector<Variant> variants = job.variants;  // those of `model`, and before them the original where it is another
  if (job.original != nullptr)
    variants.insert(variants.begin(),
                    {VariantKind::kOriginal, job.original_name, job.original_name, job.original->plan});
  const bool all = options.metrics == "all";
  PromptEncoder encoder(model.RequireTokenizer(), options.Scoring().bos, model.weights->config.max_positions);
  Processes& processes = *context.processes;
  Journal journal(JournalFile(options, model, variants, job.original), processes.rank());
  if (processes.first())
    for (const std::string& bad : journal.bad()) fmt::print(stderr, "shiftrt: {}; its items are scored again\n", bad);
  if (processes.first() && journal.batches() > 0)
    fmt::print(stderr, "{} has {} batches of an evaluation that was interrupted; they are not scored again\n",
               journal.file().string(), journal.batches());
  fmt::print("protocol {}, BOS {} ({})\n\n", kProtocol, options.bos, encoder.adds_bos() ? "added" : "not added");
  Json json = {{"model", model.name},
               {"fingerprint", model.weights->Fingerprint()},
               {"protocol", kProtocol},
               {"bos", options.bos},
               {"adds_bos", encoder.adds_bos()},
               {"tasks", Json::array()}};
  if (job.original != nullptr)
    json["original"] = {{"model", job.original->name}, {"fingerprint", job.original->weights->Fingerprint()}};
  const EvalJob eval = {context, model, job.variants, options.Scoring(), journal, job.progress};
  const std::vector<Variant> first(variants.begin(), variants.begin() + 1);
  std::vector<TaskSummary> tasks;
  std::optional<ItemLog> items;
  if (processes.first() && !options.items.empty()) items.emplace(options.items, encoder);
  for (const Dataset& dataset : datasets) {
    EvalScores scores = Evaluate(eval, dataset);
    if (job.original != nullptr)
      scores.PutFirst(Evaluate({context, *job.original, first, options.Scoring(), journal, job.progress}, dataset));
    const TaskSummary& task = tasks.emplace_back(Summarize(dataset, scores, all));
    PrintTask(task, variants, job.paper, all);
    std::fflush(stdout);
    json["tasks"].push_back(TaskJson(task, variants, job.paper));
    if (items) items->Add(dataset, variants, scores);
  }
  int64_t parameters = 0;  // of the largest
  for (const Variant& variant : variants) {
    const bool other = job.original != nullptr && &variant == &variants.front();
    parameters = std::max(parameters, variant.plan.Parameters(*(other ? *job.original : model).weights));
  }
  std::vector<const Task*> evaluated;
  evaluated.reserve(tasks.size());
  for (const TaskSummary& task : tasks) evaluated.push_back(task.dataset->task);
  const std::vector<const Task*> averaged = AveragedTasks(evaluated, parameters);
  Section section{"Zero-shot suites",
                  "Accuracies in percent, bits per byte of the right answer (lower is better) and its margin over the "
                  "best wrong answer (higher is better), with standard errors; differences are paired, item by item. " +
                      AveragedNames(tasks, averaged),
                  {}};
  for (PageTable& means : MeansTables(tasks, averaged, variants)) {
    Table table(means.header);
    for (const std::vector<std::string>& row : means.rows) table.Add(row);
    fmt::print("{}\n", table.Text());
    section.parts.emplace_back(std::move(means));
  }
  if (const std::string names = AveragedNames(tasks, averaged); !names.empty()) fmt::print("{}\n", names);
  json["mean"] = MeansJson(tasks, averaged, variants);
  if (items) items->Commit();
  processes.Barrier();
  journal.Remove();
  return {std::move(json), std::move(section)};
}

EvaluationResult EvaluateBeside(const LanguageModel& model, const std::vector<NamedModel>& made,
                                const Resources& resources, const std::vector<Dataset>& datasets,
                                const EvaluationOptions& options, Progress& progress) {
  const Model& inner = model.impl().model;
  std::vector<Variant> variants = SavedVariants(inner);
  for (const NamedModel& one : made)
    variants.push_back({VariantKind::kCorrected, one.name, one.name, one.model.impl().model.plan});
  return RunEvaluation({MakeContext(resources), inner, variants, PaperSettingOf(inner), progress}, datasets, options);
}

}  // namespace shiftrt
