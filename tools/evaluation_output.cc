// SPDX-License-Identifier: Apache-2.0
#include "tools/evaluation_output.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

std::string Percent(const Estimate& estimate) {
  return fmt::format("{:.2f} ± {:.2f}", 100 * estimate.value, 100 * estimate.error);
}

std::string Difference(const Estimate& difference) {
  return fmt::format("{:+.2f} ± {:.2f}", 100 * difference.value, 100 * difference.error);
}

// Formats a metric in bits per byte.
std::string Bits(const Estimate& estimate) { return fmt::format("{:.4f} ± {:.4f}", estimate.value, estimate.error); }

std::string BitsDifference(const Estimate& difference) {
  return fmt::format("{:+.4f} ± {:.4f}", difference.value, difference.error);
}

std::string Probability(double p) { return p < 1e-4 ? fmt::format("{:.0e}", p) : fmt::format("{:.4f}", p); }

// Percent where right answers are counted, bits per byte for another mean over items, the number itself for a
// perplexity.
std::string Value(const MetricSummary& summary) {
  const Estimate& estimate = summary.metric.estimate;
  if (summary.metric.counts) return Percent(estimate);
  if (!summary.metric.values.empty()) return Bits(estimate);
  if (std::isnan(estimate.error)) return fmt::format("{:.4f}", estimate.value);
  return fmt::format("{:.2f} ± {:.2f}", estimate.value, estimate.error);
}

// The paper's accuracy, where `metric` is the one it quotes.
std::optional<double> InPaper(const PaperSetting& paper, const TaskSummary& task, const Variant& variant,
                              const Metric& metric) {
  const Dataset& dataset = *task.dataset;
  if (metric.name != dataset.task->metric || dataset.shots > 0) return std::nullopt;
  return PaperAccuracy(paper, variant.name, dataset.task->name);
}

void PrintHeader(const Dataset& dataset) {
  const Task& task = *dataset.task;
  const auto items = std::ssize(dataset.items);
  std::string partial;
  if (items != task.rows) partial = fmt::format(", PARTIAL: {} of {} rows", items, task.rows);
  fmt::print("{}: {} items, {} shots{}; data {}, template {}\n", task.title, items, dataset.shots, partial,
             dataset.data_hash, dataset.template_hash);
}

Json DifferenceJson(const Estimate& difference) {
  return {{"difference", difference.value}, {"standard_error", difference.error}};
}

// NaN, where there is no error, becomes null.
Json MetricJson(const MetricSummary& summary) {
  const Metric& metric = summary.metric;
  Json json = {{"value", metric.estimate.value}, {"standard_error", metric.estimate.error}};
  if (metric.counts) json["right"] = metric.correct;
  if (!metric.values.empty()) json["items"] = metric.values.size();
  if (!summary.to_first) return json;
  Json& to_first = json["to_first"] = DifferenceJson(summary.to_first->difference);
  if (metric.counts) {
    to_first["only_first_right"] = summary.to_first->only_first;
    to_first["only_this_right"] = summary.to_first->only_second;
    to_first["mcnemar_p"] = summary.to_first->p;
  }
  return json;
}

// The metrics of which tables and JSON have means over tasks: "" is the accuracy that each task quotes.
struct AveragedMetric {
  const char *name, *title;
};
constexpr AveragedMetric kAveraged[] = {
    {"", "task"},
    {kBitsPerByte, "bits per byte of the right answer"},
    {kMargin, "margin over the best wrong answer, bits per byte"},
};

}  // namespace

void PrintTask(const TaskSummary& task, const std::vector<Variant>& variants, const PaperSetting& paper,
               bool all_metrics) {
  const Task& what = *task.dataset->task;
  PrintHeader(*task.dataset);
  Table table({"model", "metric", "right", "score", "to " + variants[0].name, "p", "paper"});
  for (size_t m = 0; m < task.variants[0].size(); ++m) {
    const Metric& shown = task.variants[0][m].metric;
    if (!all_metrics && what.kind == TaskKind::kChoice && shown.counts && shown.name != what.metric) continue;
    for (size_t v = 0; v < variants.size(); ++v) {
      const MetricSummary& summary = task.variants[v][m];
      const Metric& metric = summary.metric;
      std::vector<std::string> row = {variants[v].name, metric.name, "", Value(summary), "", "", ""};
      if (metric.counts) row[2] = fmt::format("{}/{}", metric.correct, metric.values.size());
      if (summary.to_first)
        row[4] =
            metric.counts ? Difference(summary.to_first->difference) : BitsDifference(summary.to_first->difference);
      if (summary.to_first && metric.counts) row[5] = Probability(summary.to_first->p);
      if (const auto said = InPaper(paper, task, variants[v], metric)) row[6] = fmt::format("{:.2f}", 100 * *said);
      table.Add(std::move(row));
    }
  }
  table.DropEmptyColumns();
  fmt::print("{}  {} tokens computed for {} in the requests, {} rows through the head\n\n", table.Text(),
             task.cost.tokens_computed, task.cost.tokens_requested, task.cost.head_rows);
}

Json TaskJson(const TaskSummary& task, const std::vector<Variant>& variants, const PaperSetting& paper) {
  const Dataset& dataset = *task.dataset;
  Json json = {{"task", dataset.task->name},
               {"metric", dataset.task->metric},
               {"files", Json::array()},
               {"items", dataset.items.size()},
               {"full_items", dataset.task->rows},
               {"partial", std::ssize(dataset.items) != dataset.task->rows},
               {"shots", dataset.shots},
               {"data_hash", dataset.data_hash},
               {"template_hash", dataset.template_hash},
               {"requests", task.cost.requests},
               {"tokens_requested", task.cost.tokens_requested},
               {"tokens_computed", task.cost.tokens_computed},
               {"head_rows", task.cost.head_rows},
               {"shared_stages", task.cost.shared_stages},
               {"seconds", task.seconds},
               {"variants", Json::array()}};
  for (const auto& file : dataset.files) json["files"].push_back(file.string());
  for (size_t v = 0; v < variants.size(); ++v) {
    Json variant = {{"name", variants[v].name}, {"metrics", Json::object()}};
    for (const MetricSummary& summary : task.variants[v]) {
      Json& entry = variant["metrics"][summary.metric.name] = MetricJson(summary);
      if (const auto said = InPaper(paper, task, variants[v], summary.metric)) entry["paper"] = *said;
    }
    json["variants"].push_back(std::move(variant));
  }
  return json;
}

std::vector<PageTable> MeansTables(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged,
                                   const std::vector<Variant>& variants) {
  std::vector<PageTable> tables;
  for (const auto& [metric, title] : kAveraged) {
    const bool accuracy = *metric == 0;
    PageTable table{{title}, {}};
    for (const Variant& variant : variants) table.header.push_back(variant.name);
    for (const TaskSummary& task : tasks) {
      if (!accuracy && task.Find(0, metric) == nullptr) continue;
      std::vector<std::string>& row = table.rows.emplace_back(std::vector{task.dataset->task->title});
      for (size_t v = 0; v < variants.size(); ++v)
        row.push_back(Value(accuracy ? task.Quoted(v) : *task.Find(v, metric)));
    }
    const std::vector<MeanOfTasks> means = Means(tasks, averaged, metric);
    if (!means.empty() && means[0].tasks > 1) {
      std::vector<std::string> mean = {fmt::format("mean of {} tasks", means[0].tasks)},
                               difference = {"  to " + variants[0].name};
      for (const MeanOfTasks& of_variant : means) {
        mean.push_back(accuracy ? Percent(of_variant.mean) : Bits(of_variant.mean));
        const auto& to_first = of_variant.to_first;
        difference.push_back(!to_first ? "" : accuracy ? Difference(*to_first) : BitsDifference(*to_first));
      }
      table.rows.push_back(std::move(mean));
      if (variants.size() > 1) table.rows.push_back(std::move(difference));
    }
    if (!table.rows.empty()) tables.push_back(std::move(table));
  }
  return tables;
}

std::string AveragedNames(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged) {
  if (averaged.size() < 2 || averaged.size() == tasks.size()) return "";
  std::vector<std::string> names;
  names.reserve(averaged.size());
  for (const Task* task : averaged) names.push_back(task->title);
  return fmt::format("The means are over {}.", fmt::join(names, ", "));
}

Json MeansJson(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged,
               const std::vector<Variant>& variants) {
  Json names = Json::array(), json = Json::array();
  for (const Task* task : averaged) names.push_back(task->name);
  for (const auto& [metric, title] : kAveraged) {
    const std::vector<MeanOfTasks> means = Means(tasks, averaged, metric);
    for (size_t v = 0; v < means.size(); ++v) {
      Json entry = {{"tasks", means[v].tasks}, {"value", means[v].mean.value}, {"standard_error", means[v].mean.error}};
      if (means[v].to_first) entry["to_first"] = DifferenceJson(*means[v].to_first);
      if (*metric == 0) {
        entry["name"] = variants[v].name;
        entry["over"] = names;
        json.push_back(std::move(entry));
      } else {
        json[v][metric] = std::move(entry);
      }
    }
  }
  return json;
}

}  // namespace shiftrt
