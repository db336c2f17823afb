// SPDX-License-Identifier: Apache-2.0
// Zero-shot suites as the commands run them: `eval`, `run --eval` and `sweep --eval` share the options.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shiftrt/evaluate.h"
#include "tools/paper/paper_tasks.h"
#include "tools/report/page.h"
#include "types/suites.h"

namespace CLI {
class App;
}  // namespace CLI

namespace shiftrt {

struct CommonOptions;

struct EvaluationOptions {
  std::map<std::string_view, std::string> words;  // by the names of SuiteFields(), as options give them
  std::string items = {}, journal = {};

  explicit EvaluationOptions(const std::string& tasks);

  const std::string& tasks() const { return words.at("tasks"); }
  SuiteSettings Settings() const;
  // Adds `flag` for the tasks, and the other options but --metrics, which go with it where there are no tasks by
  // default.
  void AddTasksTo(CLI::App& app, const std::string& flag) { AddFields(app, flag, /*metrics=*/false); }
  // The same, and --metrics, --items and --journal.
  void AddTo(CLI::App& app, const std::string& flag);
  // The rows of every task, pulled from the hub where they are not there; none if there are no tasks. Throws UsageError
  // for an unknown task, Error for a data set that is not found or a row that is malformed. Called before anything
  // else, so that this is not found out after hours of work.
  Suites Load(const CommonOptions& common) const;

 private:
  void AddFields(CLI::App& app, const std::string& flag, bool metrics);
};

// The input of RunEvaluation(). It holds references; its maker keeps the objects alive.
struct EvaluationJob {
  const std::vector<ModelVariant>& variants;  // as Evaluate() takes them
  PaperSetting paper;                         // its numbers are shown next to ours
  const Resources& resources;
  Progress& progress;
};

struct EvaluationResult {
  nlohmann::json json;
  Section section;                // a section of a page
  std::filesystem::path journal;  // for RemoveJournal(), when the results are written
};

// Scores the suites by every variant, prints a table of each as it is done and the means at the end. An evaluation that
// was interrupted continues from its journal when it is started again.
EvaluationResult RunEvaluation(const EvaluationJob& job, const Suites& suites, const EvaluationOptions& options);

}  // namespace shiftrt
