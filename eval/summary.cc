// SPDX-License-Identifier: Apache-2.0
#include "eval/summary.h"

#include <algorithm>

#include "eval/task.h"

namespace shiftrt {

const MetricSummary& TaskSummary::Quoted(size_t variant) const {
  for (const MetricSummary& summary : variants[variant])
    if (summary.metric.name == dataset->task->metric) return summary;
  return variants[variant].front();
}

TaskSummary Summarize(const Dataset& dataset, const EvalScores& scores, bool all) {
  TaskSummary task{&dataset, scores.cost, scores.seconds, {}};
  for (const auto& of_variant : scores.scores) {
    std::vector<MetricSummary> summaries;
    for (Metric& metric : Measure(*dataset.task, dataset.items, of_variant, all)) {
      summaries.push_back({std::move(metric), std::nullopt});
      MetricSummary& summary = summaries.back();
      if (task.variants.empty() || !summary.counts()) continue;
      summary.to_first = Compare(task.variants[0][summaries.size() - 1].metric.right, summary.metric.right);
    }
    task.variants.push_back(std::move(summaries));
  }
  return task;
}

std::vector<MeanAccuracy> MeanAccuracies(const std::vector<TaskSummary>& tasks) {
  const auto is_there = [&](const Task* task) {
    return std::any_of(tasks.begin(), tasks.end(), [&](const TaskSummary& t) { return t.dataset->task == task; });
  };
  const std::vector<const Task*> paper = ParseTasks("paper7");
  const bool paper_only = std::all_of(paper.begin(), paper.end(), is_there);
  std::vector<const TaskSummary*> averaged;
  for (const TaskSummary& task : tasks) {
    const bool wanted = !paper_only || std::find(paper.begin(), paper.end(), task.dataset->task) != paper.end();
    if (wanted && task.Quoted(0).counts()) averaged.push_back(&task);
  }
  std::vector<MeanAccuracy> means;
  if (averaged.empty()) return means;
  for (size_t v = 0; v < averaged[0]->variants.size(); ++v) {
    std::vector<Estimate> accuracies, differences;
    for (const TaskSummary* task : averaged) {
      accuracies.push_back(task->Quoted(v).metric.estimate);
      if (v > 0) differences.push_back(task->Quoted(v).to_first->difference);
    }
    MeanAccuracy& mean = means.emplace_back(MeanAccuracy{std::ssize(averaged), MeanOf(accuracies), std::nullopt});
    if (v > 0) mean.to_first = MeanOf(differences);
  }
  return means;
}

}  // namespace shiftrt
