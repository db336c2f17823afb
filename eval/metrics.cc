// SPDX-License-Identifier: Apache-2.0
#include "eval/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <set>
#include <utility>

#include "runtime/check.h"

namespace shiftrt {

namespace {

using Scores = std::vector<std::vector<Score>>;

// The choice with the greatest log-likelihood over `lengths`, or as it is where there are none. An answer without
// length is never chosen.
int64_t Likeliest(const std::vector<Score>& scores, const std::vector<int64_t>& lengths) {
  const auto value = [&](size_t i) {
    return lengths.empty() ? scores[i].log_likelihood : scores[i].log_likelihood / static_cast<double>(lengths[i]);
  };
  size_t best = 0;
  for (size_t i = 1; i < scores.size(); ++i)
    if (value(i) > value(best)) best = i;
  return static_cast<int64_t>(best);
}

bool IsRight(const std::string& metric, const Task& task, const Item& item, const std::vector<Score>& scores) {
  if (metric == "greedy" || task.kind == TaskKind::kWord) return scores[item.gold].greedy;
  if (metric == "acc_norm") return Likeliest(scores, item.units) == item.gold;
  if (metric == "acc_bytes") return Likeliest(scores, item.bytes) == item.gold;
  return Likeliest(scores, {}) == item.gold;
}

// The metric of this value; `values` is what it is the mean of, if it is one.
Metric MetricOf(const std::string& name, const Estimate& estimate, std::vector<double> values = {}) {
  Metric metric;
  metric.metric = name;
  metric.value = estimate.value;
  metric.standard_error = estimate.error;
  metric.items = std::ssize(values);
  metric.values = std::move(values);
  return metric;
}

// The mean of `value`, a function of an item and its scores.
template <typename F>
Metric MeanOfItems(const std::string& name, const std::vector<Item>& items, const Scores& scores, const F& value) {
  std::vector<double> values;
  values.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) values.push_back(value(items[i], scores[i]));
  const Estimate mean = Mean(values);
  return MetricOf(name, mean, std::move(values));
}

// Returns the values of each subject's items.
std::vector<std::vector<double>> BySubject(const std::vector<Item>& items, const std::vector<double>& values) {
  std::map<std::string, std::vector<double>> subjects;
  for (size_t i = 0; i < items.size(); ++i) subjects[items[i].subject].push_back(values[i]);
  std::vector<std::vector<double>> groups;
  groups.reserve(subjects.size());
  for (auto& [subject, group] : subjects) groups.push_back(std::move(group));
  return groups;
}

// Returns the share of items that are right. If the task has subjects, its standard error is pooled over them, as in
// the reference.
Metric Accuracy(const std::string& name, const Task& task, const std::vector<Item>& items, const Scores& scores) {
  Metric metric = MeanOfItems(name, items, scores, [&](const Item& item, const std::vector<Score>& of_item) {
    return IsRight(name, task, item, of_item) ? 1.0 : 0.0;
  });
  if (task.by_subject) metric.standard_error = PooledError(BySubject(items, metric.values));
  metric.counts = true;
  metric.right = std::count(metric.values.begin(), metric.values.end(), 1.0);
  return metric;
}

// The bits that the model needs for each byte of answer `i`. An empty answer counts as one byte.
double BitsPerByte(const Item& item, const std::vector<Score>& scores, size_t i) {
  return -scores[i].log_likelihood / std::numbers::ln2 /
         static_cast<double>(std::max<int64_t>(item.answer_bytes[i], 1));
}

double Margin(const Item& item, const std::vector<Score>& scores) {
  double best_wrong = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < scores.size(); ++i)
    if (static_cast<int64_t>(i) != item.gold) best_wrong = std::min(best_wrong, BitsPerByte(item, scores, i));
  return best_wrong - BitsPerByte(item, scores, item.gold);
}

// The word perplexity of the only answer. The delta method gives its error from that of the mean log-likelihood.
Metric WordPerplexity(const std::string& name, const Scores& scores) {
  std::vector<double> nll;
  for (const auto& item : scores) nll.push_back(-item[0].log_likelihood);
  const Estimate mean = Mean(nll);
  const double perplexity = std::exp(mean.value);
  return MetricOf(name, {perplexity, perplexity * mean.error});
}

// Over all documents together; the reference gives no error either.
Metric DocumentPerplexity(const std::string& name, const std::vector<Item>& items, const Scores& scores) {
  double nll = 0, words = 0, bytes = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    nll -= scores[i][0].log_likelihood;
    words += static_cast<double>(items[i].units[0]);
    bytes += static_cast<double>(items[i].bytes[0]);
  }
  const double value = name == "word_perplexity"   ? std::exp(nll / words)
                       : name == "byte_perplexity" ? std::exp(nll / bytes)
                                                   : nll / bytes / std::numbers::ln2;
  return MetricOf(name, {value, std::numeric_limits<double>::quiet_NaN()});
}

}  // namespace

double RepeatedFourGrams(std::span<const int32_t> tokens) {
  constexpr size_t kLength = 4;
  if (tokens.size() < kLength) return 0;
  std::set<std::array<int32_t, kLength>> seen;
  const size_t count = tokens.size() - kLength + 1;
  for (size_t i = 0; i < count; ++i) {
    std::array<int32_t, kLength> gram;
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(i), kLength, gram.begin());
    seen.insert(gram);
  }
  return 1 - static_cast<double>(seen.size()) / static_cast<double>(count);
}

std::vector<Metric> MeasureReplies(const Task& task, const std::vector<Reply>& replies) {
  const auto mean = [&](const std::string& name, const auto& value) {
    std::vector<double> values;
    values.reserve(replies.size());
    for (const Reply& reply : replies) values.push_back(value(reply));
    const Estimate estimate = Mean(values);
    return MetricOf(name, estimate, std::move(values));
  };
  std::vector<Metric> metrics;
  for (size_t m = 0; m < task.metrics.size(); ++m) {
    metrics.push_back(mean(task.metrics[m], [&](const Reply& reply) { return reply.right[m] ? 1.0 : 0.0; }));
    metrics.back().counts = true;
    metrics.back().right = std::count(metrics.back().values.begin(), metrics.back().values.end(), 1.0);
  }
  metrics.push_back(mean(kRepeated, [](const Reply& reply) { return RepeatedFourGrams(reply.tokens); }));
  metrics.push_back(mean(kReplyTokens, [](const Reply& reply) { return static_cast<double>(reply.tokens.size()); }));
  return metrics;
}

std::vector<Metric> Measure(const Task& task, const std::vector<Item>& items, const Scores& scores, bool all) {
  std::vector<std::string> names = task.metrics;
  if (all && task.kind == TaskKind::kChoice) names = {"acc", "acc_norm", "acc_bytes", "greedy"};
  std::vector<Metric> metrics;
  for (const std::string& name : names) {
    if (task.kind == TaskKind::kPages) {
      metrics.push_back(DocumentPerplexity(name, items, scores));
    } else if (name == "perplexity") {
      metrics.push_back(WordPerplexity(name, scores));
    } else {
      metrics.push_back(Accuracy(name, task, items, scores));
    }
  }
  if (task.kind == TaskKind::kPages) return metrics;
  metrics.push_back(MeanOfItems(kBitsPerByte, items, scores, [](const Item& item, const std::vector<Score>& of_item) {
    return BitsPerByte(item, of_item, item.gold);
  }));
  if (task.kind == TaskKind::kChoice) metrics.push_back(MeanOfItems(kMargin, items, scores, Margin));
  return metrics;
}

}  // namespace shiftrt
