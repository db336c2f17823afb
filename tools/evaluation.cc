// SPDX-License-Identifier: Apache-2.0
#include "tools/evaluation.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/cache.h"
#include "tools/evaluation_output.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/standard_output.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kProtocol = "lm-evaluation-harness 0.4";

// The file in which an evaluation of these tasks and variants records what it has done: the one that the user named, or
// one in the cache that the same command finds again.
std::filesystem::path JournalFile(const EvaluationOptions& options, const std::vector<ModelVariant>& variants) {
  if (!options.journal.empty()) return options.journal;
  std::string what = fmt::format("{} {} {} {} {}", options.tasks, options.shots.value_or(-1), options.limit,
                                 options.bos, fmt::join(options.data, " "));
  for (const ModelVariant& variant : variants)
    what += fmt::format(" {} {} {}", variant.name, variant.model.Directory().string(), variant.model.PlanFingerprint());
  return CacheFile("eval", what, ".jsonl");
}

}  // namespace

void EvaluationOptions::AddTasksTo(CLI::App& app, const std::string& flag) {
  CLI::Option* const names = app.add_option(
      flag, tasks,
      "suites: a comma-separated list of names, paper7, small4, or all that need no generated replies (all)");
  if (!tasks.empty()) names->capture_default_str();
  const auto add = [&](CLI::Option* option) {
    if (tasks.empty()) option->needs(names);
    return option;
  };
  add(app.add_option("--data", data,
                     "directory with the files of the data sets, or TASK=FILE; may be repeated. Without it, and for\n"
                     "what it lacks, they are pulled from the Hugging Face hub (docs/pull.md)"));
  add(app.add_option("--shots", shots,
                     "number of solved rows before each question (default: 5 for gsm8k, 0 for the other tasks)"))
      ->check(CLI::Range(0, 100));
  add(app.add_option("--limit", limit, "only the first N rows per task, or per subject; 0: all")
          ->check(CLI::Range(0, 1 << 30)))
      ->capture_default_str();
  add(app.add_flag("--allow-code", allow_code,
                   "allow tasks that run programs which the model writes (humaneval): each runs in a process without\n"
                   "network and files of the user, with limits (docs/evaluation.md)"));
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
  add(app.add_option(
          "--journal", journal,
          "file that records finished batches, from which an interrupted evaluation continues; removed when\n"
          "all results are written (default: a file in ~/.cache/shiftrt)"))
      ->check(JournalOutput());
}

Suites EvaluationOptions::Load(const CommonOptions& common) const {
  if (tasks.empty()) return {};
  const SuiteSettings settings = {tasks, data, shots, limit, bos, metrics == "all", allow_code};
  common.processes->FirstBeforeOthers([&] {
    PullMissingRows(settings, common.offline, common.quiet);
    return true;
  });
  return Suites(settings);
}

EvaluationResult RunEvaluation(const EvaluationJob& job, const Suites& suites, const EvaluationOptions& options) {
  const std::vector<ModelVariant>& variants = job.variants;
  const LanguageModel &first = variants.front().model, &model = variants.back().model;
  const bool all = options.metrics == "all", adds_bos = AddsBos(model, options.bos);
  fmt::print("protocol {}, BOS {} ({})\n\n", kProtocol, options.bos, adds_bos ? "added" : "not added");
  Json json = {{"model", model.Name()}, {"fingerprint", model.WeightsFingerprint()},
               {"protocol", kProtocol}, {"bos", options.bos},
               {"adds_bos", adds_bos},  {"tasks", Json::array()}};
  if (first.WeightsFingerprint() != model.WeightsFingerprint())
    json["original"] = {{"model", first.Name()}, {"fingerprint", first.WeightsFingerprint()}};
  const auto done = [&](const SuiteResult& result) {
    PrintSuite(result, variants, job.paper, all);
    std::fflush(stdout);
    json["tasks"].push_back(SuiteJson(result, variants, job.paper));
  };
  std::filesystem::path journal = JournalFile(options, variants);
  const SuiteEvaluation evaluation =
      Evaluate(variants, suites,
               {.done = done, .tell = Tell, .items = options.items, .journal = journal, .progress = &job.progress},
               job.resources);
  const std::string averaged = AveragedNames(evaluation);
  Section section{"Zero-shot suites",
                  "Accuracies in percent, bits per byte of the right answer (lower is better) and its margin over the "
                  "best wrong answer (higher is better), with standard errors; differences are paired, item by item. " +
                      averaged,
                  {}};
  for (PageTable& means : MeansTables(evaluation, variants)) {
    fmt::print("{}\n", Table(means).Text());
    section.parts.emplace_back(std::move(means));
  }
  if (!averaged.empty()) fmt::print("{}\n", averaged);
  json["mean"] = MeansJson(evaluation, variants);
  return {std::move(json), std::move(section), std::move(journal)};
}

}  // namespace shiftrt
