// SPDX-License-Identifier: Apache-2.0
// What the scores of an evaluation come to: metrics of each task and variant, paired differences, mean accuracies.
#pragma once

#include <optional>
#include <vector>

#include "eval/dataset.h"
#include "eval/evaluate.h"
#include "eval/metrics.h"
#include "eval/statistics.h"

namespace shiftrt {

struct MetricSummary {
  Metric metric;
  // This variant less the first one, on the same items. Nothing for the first variant, nor for a metric that does not
  // count right answers.
  std::optional<Paired> to_first;

  bool counts() const { return !metric.right.empty(); }
};

// One task. It refers to the data set, which is to outlive it.
struct TaskSummary {
  const Dataset* dataset = nullptr;
  EvalCost cost;
  double seconds = 0;
  std::vector<std::vector<MetricSummary>> variants;  // of each variant, its metrics in the order of Measure()

  // The metric that is quoted for the task.
  const MetricSummary& Quoted(size_t variant) const;
};

// With `all`, of every metric that Measure() has.
TaskSummary Summarize(const Dataset& dataset, const EvalScores& scores, bool all);

// Mean of the quoted accuracies of one variant.
struct MeanAccuracy {
  int64_t tasks = 0;
  Estimate mean;
  std::optional<Estimate> to_first;  // less the first variant's; nothing for the first
};

// One value per variant, over the paper's seven tasks if all of them are in `tasks`, else over all tasks that count
// right answers. Empty if none does.
std::vector<MeanAccuracy> MeanAccuracies(const std::vector<TaskSummary>& tasks);

}  // namespace shiftrt
