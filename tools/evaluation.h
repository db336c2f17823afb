// Zero-shot suites as the commands run them: options, tables, JSON. `eval` and `run --eval` share it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "eval/statistics.h"
#include "shift/pipeline.h"

namespace CLI {
class App;
}

namespace shiftrt {

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
  // The rows of every task. Throws UsageError for a task there is not, Error for a data set that is not found or a row
  // that is malformed; done before anything else, so that it is not found after hours of work.
  std::vector<Dataset> Load() const;
};

// Scores `datasets` by every variant, prints a table of each as it is done and the mean at the end, and returns all of
// it as JSON. An interrupted evaluation goes on where it was when it is started again. `criterion`: by which the layers
// the variants lack were removed, so that the paper's numbers can stand beside ours; "" for any other.
nlohmann::json RunEvaluation(const Context& context, const Model& model, const std::vector<EvalVariant>& variants,
                             const std::string& criterion, const std::vector<Dataset>& datasets,
                             const EvaluationOptions& options, Progress& progress);

// The mean accuracy of one plan, as RunEvaluation prints it: over the paper's seven suites where all are among the
// data sets, else over all that count right answers; NaN where none does.
Estimate MeanAccuracy(const Context& context, const Model& model, const DepthPlan& plan,
                      const std::vector<Dataset>& datasets, const EvaluationOptions& options, Progress& progress);

// The criterion, if it removed a quarter of `layers` layers as in the paper's tables, else "".
std::string PaperCriterion(const Selection& selection, int64_t layers);

// "original", "pruned", "lra" (or the name of another correction) and "merged", as far as such a shift makes them.
std::vector<std::string> VariantNames(const ShiftOptions& shift);
std::vector<EvalVariant> VariantsOf(const Model& model, const ShiftResult& result, const ShiftOptions& shift);

}  // namespace shiftrt
