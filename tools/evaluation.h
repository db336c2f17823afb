// SPDX-License-Identifier: Apache-2.0
// Zero-shot suites as the commands run them: `eval`, `run --eval` and `sweep --eval` share the options.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "include/shiftrt/model.h"
#include "include/shiftrt/resources.h"
#include "tools/paper/paper_tasks.h"
#include "tools/report/page.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct CommonOptions;

struct EvaluationOptions {
  std::string tasks = "paper7";
  std::vector<std::string> data = {};
  std::string bos = "auto", metrics = "paper", items = {}, journal = {};
  int64_t shots = 0, limit = 0;

  // Adds `flag` for the tasks, and --data, --shots, --limit and --bos, which go with it where there are no tasks by
  // default.
  void AddTasksTo(CLI::App& app, const std::string& flag);
  // The same, and --metrics, --items and --journal.
  void AddTo(CLI::App& app, const std::string& flag);
  // The rows of every task, pulled from the hub where they are not there. Throws UsageError for an unknown task, Error
  // for a data set that is not found or a row that is malformed. Called before anything else, so that this is not found
  // out after hours of work.
  std::vector<Dataset> Load(const CommonOptions& common) const;
  EvalOptions Scoring() const;
};

// The input of RunEvaluation(). It holds references; its maker keeps the objects alive.
struct EvaluationJob {
  const Context& context;
  const Model& model;
  const std::vector<Variant>& variants;
  PaperSetting paper;  // whose numbers are shown next to ours
  Progress& progress;
  const Model* original = nullptr;  // another model, with weights of its own, that the variants are compared with
  std::string original_name = "original";
};

struct EvaluationResult {
  nlohmann::json json;
  Section section;  // of a page
};

// Scores `datasets` by every variant, prints a table of each as it is done and the means at the end. An evaluation that
// was interrupted continues from its journal when it is started again.
EvaluationResult RunEvaluation(const EvaluationJob& job, const std::vector<Dataset>& datasets,
                               const EvaluationOptions& options);

// A model of the public interface, and what tables call it.
struct NamedModel {
  std::string name;
  LanguageModel model;
};
// The same for the variants that a model directory holds (SavedVariants) and models made of it.
EvaluationResult EvaluateBeside(const LanguageModel& model, const std::vector<NamedModel>& made,
                                const Resources& resources, const std::vector<Dataset>& datasets,
                                const EvaluationOptions& options, Progress& progress);

}  // namespace shiftrt
