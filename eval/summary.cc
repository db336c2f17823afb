// SPDX-License-Identifier: Apache-2.0
#include "eval/summary.h"

#include <algorithm>

#include "eval/metrics.h"
#include "eval/statistics.h"
#include "eval/task.h"

namespace shiftrt {

const SuiteScore& Quoted(const SuiteResult& task, size_t variant) {
  const SuiteScore* const quoted = task.Find(variant, task.quoted_metric);
  return quoted != nullptr ? *quoted : task.scores[variant].front();
}

SuiteResult Summarize(const Dataset& dataset, const EvalScores& scores, bool all) {
  const Task& task = *dataset.task;
  SuiteResult result{.task = task.name,
                     .quoted_metric = task.metric,
                     .items = std::ssize(dataset.items),
                     .seconds = scores.seconds,
                     .title = task.title,
                     .choices = task.kind == TaskKind::kChoice,
                     .full_items = task.rows,
                     .shots = dataset.shots,
                     .files = dataset.files,
                     .data_hash = dataset.data_hash,
                     .template_hash = dataset.template_hash,
                     .requests = scores.cost.requests,
                     .tokens_requested = scores.cost.tokens_requested,
                     .tokens_computed = scores.cost.tokens_computed,
                     .head_rows = scores.cost.head_rows,
                     .shared_stages = scores.cost.shared_stages};
  std::vector<Metric> first;
  const bool replies = task.kind == TaskKind::kReply;
  for (size_t v = 0; v < (replies ? scores.replies.size() : scores.scores.size()); ++v) {
    std::vector<Metric> metrics =
        replies ? MeasureReplies(task, scores.replies[v]) : Measure(task, dataset.items, scores.scores[v], all);
    for (size_t m = 0; m < first.size(); ++m)
      if (metrics[m].items > 0) metrics[m].to_first = Compare(first[m].values, metrics[m].values);
    result.scores.emplace_back(metrics.begin(), metrics.end());
    if (first.empty()) first = std::move(metrics);
  }
  return result;
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

SuiteMeans Means(const std::vector<SuiteResult>& tasks, const std::vector<const Task*>& averaged,
                 const std::string& metric) {
  const auto score = [&](const SuiteResult& task, size_t variant) {
    return metric.empty() ? &Quoted(task, variant) : task.Find(variant, metric);
  };
  std::vector<const SuiteResult*> with_metric;
  for (const SuiteResult& task : tasks)
    if (std::any_of(averaged.begin(), averaged.end(), [&](const Task* one) { return one->name == task.task; }) &&
        score(task, 0) != nullptr)
      with_metric.push_back(&task);
  SuiteMeans means{.metric = metric, .tasks = std::ssize(with_metric)};
  if (with_metric.empty()) return means;
  for (size_t v = 0; v < with_metric[0]->scores.size(); ++v) {
    std::vector<Estimate> values, differences;
    for (const SuiteResult* task : with_metric) {
      const SuiteScore& found = *score(*task, v);
      values.push_back({found.value, found.standard_error});
      if (v > 0) differences.push_back({found.to_first->difference, found.to_first->standard_error});
    }
    const Estimate mean = MeanOf(values);
    SuiteMean& of_model = means.models.emplace_back(SuiteMean{mean.value, mean.error, std::nullopt});
    if (v == 0) continue;
    const Estimate difference = MeanOf(differences);
    of_model.to_first = {difference.value, difference.error};
  }
  return means;
}

}  // namespace shiftrt
