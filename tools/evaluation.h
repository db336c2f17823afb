// Zero-shot suites as the commands run them: options, tables, JSON. `eval` and `run --eval` share it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/evaluate.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct EvaluationOptions {
  std::string tasks = "paper7";
  std::vector<std::string> data;
  std::string bos = "auto", metrics = "paper", items, journal;
  int64_t shots = 0, limit = 0;

  // Adds --data, --shots, --limit, --bos, --metrics, --items and --journal.
  void AddTo(CLI::App& app);
};

// Scores every task by every variant, prints a table of each as it is done and the mean at the end, and returns all of
// it as JSON. An interrupted evaluation goes on where it was when it is started again. `criterion`: by which the layers
// the variants lack were removed, so that the paper's numbers can stand beside ours; "" for any other.
nlohmann::json RunEvaluation(const Context& context, const Model& model, const std::vector<EvalVariant>& variants,
                             const std::string& criterion, const EvaluationOptions& options, Progress& progress);

// `criterion` if it removed `removed` of `layers` layers as the paper's tables have it (a quarter), else "".
std::string PaperCriterion(const std::string& criterion, int64_t removed, int64_t layers);

}  // namespace shiftrt
