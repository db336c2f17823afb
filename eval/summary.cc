// SPDX-License-Identifier: Apache-2.0
#include "eval/summary.h"

#include <algorithm>

#include "eval/task.h"

namespace shiftrt {

const MetricSummary* TaskSummary::Find(size_t variant, std::string_view metric) const {
  for (const MetricSummary& summary : variants[variant])
    if (summary.metric.name == metric) return &summary;
  return nullptr;
}

const MetricSummary& TaskSummary::Quoted(size_t variant) const {
  const MetricSummary* const quoted = Find(variant, dataset->task->metric);
  return quoted != nullptr ? *quoted : variants[variant].front();
}

TaskSummary Summarize(const Dataset& dataset, const EvalScores& scores, bool all) {
  TaskSummary task{&dataset, scores.cost, scores.seconds, {}};
  for (const auto& of_variant : scores.scores) {
    std::vector<MetricSummary> summaries;
    for (Metric& metric : Measure(*dataset.task, dataset.items, of_variant, all)) {
      summaries.push_back({std::move(metric), std::nullopt});
      MetricSummary& summary = summaries.back();
      if (task.variants.empty() || summary.metric.values.empty()) continue;
      summary.to_first = Compare(task.variants[0][summaries.size() - 1].metric.values, summary.metric.values);
    }
    task.variants.push_back(std::move(summaries));
  }
  return task;
}

std::vector<const Task*> AveragedTasks(const std::vector<const Task*>& tasks, int64_t parameters) {
  const auto has = [](const std::vector<const Task*>& list, const Task* task) {
    return std::find(list.begin(), list.end(), task) != list.end();
  };
  const auto has_all = [&](const std::vector<const Task*>& group) {
    return std::all_of(group.begin(), group.end(), [&](const Task* task) { return has(tasks, task); });
  };
  const bool small = parameters < kSmallModel;
  const std::vector<const Task*> headline = ParseTasks("small4"), paper = ParseTasks("paper7");
  std::vector<const Task*> averaged = small && has_all(headline) ? headline : has_all(paper) ? paper : tasks;
  std::erase_if(averaged, [](const Task* task) { return task->kind == TaskKind::kPages; });
  if (small && averaged.size() > 1) std::erase_if(averaged, [](const Task* task) { return task->name == "boolq"; });
  return averaged;
}

std::vector<MeanOfTasks> Means(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged,
                               std::string_view metric) {
  const auto summary = [&](const TaskSummary& task, size_t variant) {
    return metric.empty() ? &task.Quoted(variant) : task.Find(variant, metric);
  };
  std::vector<const TaskSummary*> with_metric;
  for (const TaskSummary& task : tasks)
    if (std::find(averaged.begin(), averaged.end(), task.dataset->task) != averaged.end() &&
        summary(task, 0) != nullptr)
      with_metric.push_back(&task);
  std::vector<MeanOfTasks> means;
  if (with_metric.empty()) return means;
  for (size_t v = 0; v < with_metric[0]->variants.size(); ++v) {
    std::vector<Estimate> values, differences;
    for (const TaskSummary* task : with_metric) {
      const MetricSummary& found = *summary(*task, v);
      values.push_back(found.metric.estimate);
      if (v > 0) differences.push_back(found.to_first->difference);
    }
    MeanOfTasks& mean = means.emplace_back(MeanOfTasks{std::ssize(with_metric), MeanOf(values), std::nullopt});
    if (v > 0) mean.to_first = MeanOf(differences);
  }
  return means;
}

}  // namespace shiftrt
