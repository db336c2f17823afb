// SPDX-License-Identifier: Apache-2.0
// What the scores of an evaluation come to: metrics of each task and variant, paired differences, mean accuracies.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "eval/dataset.h"
#include "eval/evaluate.h"
#include "eval/metrics.h"
#include "eval/statistics.h"

namespace shiftrt {

struct MetricSummary {
  Metric metric;
  // This variant less the first one, on the same items. Nothing for the first variant, nor for a metric that is not a
  // mean over items.
  std::optional<Paired> to_first;
};

// One task. It refers to the data set, which is to outlive it.
struct TaskSummary {
  const Dataset* dataset = nullptr;
  EvalCost cost;
  double seconds = 0;
  std::vector<std::vector<MetricSummary>> variants;  // for each variant its metrics in the order of Measure()

  // The metric that is quoted for the task.
  const MetricSummary& Quoted(size_t variant) const;
  // The metric of this name, or null.
  const MetricSummary* Find(size_t variant, std::string_view metric) const;
};

// With `all`, of every metric that Measure() has.
TaskSummary Summarize(const Dataset& dataset, const EvalScores& scores, bool all);

// The tasks that means are taken over, for a model of so many parameters: all of the group small4 if they are there and
// the model is small (below kSmallModel), else all of the paper's seven if they are there, else all that count right
// answers. BoolQ is left out on small models, whose answers to it are close to guesses, unless it is alone.
std::vector<const Task*> AveragedTasks(const std::vector<const Task*>& tasks, int64_t parameters);
inline constexpr int64_t kSmallModel = 1'000'000'000;

// Mean over tasks of one metric of one variant.
struct MeanOfTasks {
  int64_t tasks = 0;
  Estimate mean;
  std::optional<Estimate> to_first;  // less the first variant's; nothing for the first
};

// One value per variant, of the quoted accuracies, or of `metric` if it is named, over those of the averaged tasks that
// have it. Empty if none has.
std::vector<MeanOfTasks> Means(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged,
                               std::string_view metric = {});

}  // namespace shiftrt
