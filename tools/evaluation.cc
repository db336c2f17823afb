// SPDX-License-Identifier: Apache-2.0
#include "tools/evaluation.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/cache.h"
#include "tools/evaluation_output.h"
#include "tools/fields.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/standard_output.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kProtocol = "lm-evaluation-harness 0.4";

// The file in which an evaluation records what it has done: the one that the user named, or one in the cache that the
// same command finds again.
std::filesystem::path JournalFile(const EvaluationOptions& options, const SuiteSettings& settings,
                                  const EvaluationJob& job) {
  if (!options.journal.empty()) return options.journal;
  WorkKey key("journal");
  for (const ModelVariant& variant : job.variants)
    key.Add(variant.name, CommandKey("variant", variant.model, job.resources).Hash());
  return CacheFile("eval", key.AddRows(SuiteFields(), settings), ".jsonl");
}

}  // namespace

EvaluationOptions::EvaluationOptions(const std::string& tasks) {
  for (const SuiteField& field : SuiteFields()) words[field.name] = field.words({});
  words["tasks"] = tasks;
}

SuiteSettings EvaluationOptions::Settings() const {
  SuiteSettings settings;
  for (const SuiteField& field : SuiteFields()) field.set(words.at(field.name), settings);
  return settings;
}

void EvaluationOptions::AddFields(CLI::App& app, const std::string& flag, bool metrics) {
  for (const SuiteField& field : SuiteFields()) {
    if ((field.name == "all_metrics") != metrics) continue;
    const bool is_tasks = field.name == "tasks";
    CLI::Option* const option = AddField(field.kind, is_tasks ? flag : field.flag(), std::string(field.help),
                                         words.at(field.name), app, field.bounds);
    if (!field.choices.empty()) option->check(CLI::IsMember(CLI::detail::split(std::string(field.choices), ' ')));
    if (!is_tasks && tasks().empty()) option->needs(app.get_option(flag));
  }
}

void EvaluationOptions::AddTo(CLI::App& app, const std::string& flag) {
  AddTasksTo(app, flag);
  AddFields(app, flag, /*metrics=*/true);
  const auto add = [&](CLI::Option* option) {
    if (tasks().empty()) option->needs(app.get_option(flag));
    return option;
  };
  add(app.add_option("--items", items, "write prompts and scores to this file, one JSON line per item"))
      ->check(FileOutput());
  add(app.add_option(
          "--journal", journal,
          "file that records finished batches, from which an interrupted evaluation continues; removed when\n"
          "all results are written (default: a file in ~/.cache/shiftrt)"))
      ->check(JournalOutput());
}

Suites EvaluationOptions::Load(const CommonOptions& common) const {
  if (tasks().empty()) return {};
  const SuiteSettings settings = Settings();
  common.processes->FirstBeforeOthers([&] {
    PullMissingRows(settings, common.offline, common.quiet);
    return true;
  });
  return Suites(settings);
}

EvaluationResult RunEvaluation(const EvaluationJob& job, const Suites& suites, const EvaluationOptions& options) {
  const std::vector<ModelVariant>& variants = job.variants;
  const LanguageModel &first = variants.front().model, &model = variants.back().model;
  const SuiteSettings settings = options.Settings();
  const bool adds_bos = AddsBos(model, settings.bos);
  fmt::print("protocol {}, BOS {} ({})\n\n", kProtocol, settings.bos, adds_bos ? "added" : "not added");
  Json json = {{"model", model.Name()}, {"fingerprint", model.WeightsFingerprint()},
               {"protocol", kProtocol}, {"bos", settings.bos},
               {"adds_bos", adds_bos},  {"tasks", Json::array()}};
  if (first.WeightsFingerprint() != model.WeightsFingerprint())
    json["original"] = {{"model", first.Name()}, {"fingerprint", first.WeightsFingerprint()}};
  for (const SuiteField& field : SuiteFields()) json["settings"][field.recorded_as()] = field.words(settings);
  const auto done = [&](const SuiteResult& result) {
    PrintSuite(result, variants, job.paper, settings.all_metrics);
    std::fflush(stdout);
    json["tasks"].push_back(SuiteJson(result, variants, job.paper));
  };
  std::filesystem::path journal = JournalFile(options, settings, job);
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
