// SPDX-License-Identifier: Apache-2.0
#include "tools/evaluation_output.h"

#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "eval/summary.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

std::string WithError(double value, double error) { return fmt::format("{:.4f}{}", value, PlusMinus(error, 4)); }

std::string Percent(double value, double error) {
  return fmt::format("{:.2f}{}", 100 * value, PlusMinus(100 * error, 2));
}

// A difference in percent where right answers are counted, else in bits per byte.
std::string Difference(const PairedScore& difference, bool counts) {
  const double error = difference.standard_error;
  if (counts) return fmt::format("{:+.2f}{}", 100 * difference.difference, PlusMinus(100 * error, 2));
  return fmt::format("{:+.4f}{}", difference.difference, PlusMinus(error, 4));
}

std::string Probability(double p) { return p < 1e-4 ? fmt::format("{:.0e}", p) : fmt::format("{:.4f}", p); }

// Percent where right answers are counted, bits per byte for another mean over items, the number itself for a
// perplexity.
std::string Value(const SuiteScore& score) {
  if (score.counts) return Percent(score.value, score.standard_error);
  if (score.items > 0) return WithError(score.value, score.standard_error);
  if (std::isnan(score.standard_error)) return fmt::format("{:.4f}", score.value);
  return fmt::format("{:.2f} ± {:.2f}", score.value, score.standard_error);
}

// The paper's accuracy, where `metric` is the one it quotes.
std::optional<double> InPaper(const PaperSetting& paper, const SuiteResult& suite, const ModelVariant& variant,
                              const SuiteScore& score) {
  if (score.metric != suite.quoted_metric || suite.shots > 0) return std::nullopt;
  return PaperAccuracy(paper, variant.name, suite.task);
}

Json DifferenceJson(const PairedScore& difference) {
  return {{"difference", difference.difference}, {"standard_error", difference.standard_error}};
}

// NaN, where there is no error, becomes null.
Json ScoreJson(const SuiteScore& score) {
  Json json = {{"value", score.value}, {"standard_error", score.standard_error}};
  if (score.counts) json["right"] = score.right;
  if (score.items > 0) json["items"] = score.items;
  if (!score.to_first) return json;
  Json& to_first = json["to_first"] = DifferenceJson(*score.to_first);
  if (score.counts) {
    to_first["only_first_right"] = score.to_first->only_first;
    to_first["only_this_right"] = score.to_first->only_this;
    to_first["mcnemar_p"] = score.to_first->p;
  }
  return json;
}

// The heading of a metric of which there are means; "" is the accuracy that each task quotes.
const char* TitleOf(const std::string& metric) {
  return metric.empty()              ? "task"
         : metric == "bits_per_byte" ? "bits per byte of the right answer"
                                     : "margin over the best wrong answer, bits per byte";
}

}  // namespace

void PrintSuite(const SuiteResult& suite, const std::vector<ModelVariant>& variants, const PaperSetting& paper,
                bool all_metrics) {
  std::string partial;
  if (suite.items != suite.full_items) partial = fmt::format(", PARTIAL: {} of {} rows", suite.items, suite.full_items);
  fmt::print("{}: {} items, {} shots{}; data {}, template {}\n", suite.title, suite.items, suite.shots, partial,
             suite.data_hash, suite.template_hash);
  Table table({"model", "metric", "right", "score", "to " + variants[0].name, "p", "paper"});
  for (size_t m = 0; m < suite.scores[0].size(); ++m) {
    const SuiteScore& shown = suite.scores[0][m];
    if (!all_metrics && suite.choices && shown.counts && shown.metric != suite.quoted_metric) continue;
    for (size_t v = 0; v < variants.size(); ++v) {
      const SuiteScore& score = suite.scores[v][m];
      std::vector<std::string> row = {variants[v].name, score.metric, "", Value(score), "", "", ""};
      if (score.counts) row[2] = fmt::format("{}/{}", score.right, score.items);
      if (score.to_first) row[4] = Difference(*score.to_first, score.counts);
      if (score.to_first && score.counts) row[5] = Probability(score.to_first->p);
      if (const auto said = InPaper(paper, suite, variants[v], score)) row[6] = fmt::format("{:.2f}", 100 * *said);
      table.Add(std::move(row));
    }
  }
  table.DropEmptyColumns();
  fmt::print("{}  {} tokens computed for {} in the requests, {} rows through the head\n\n", table.Text(),
             suite.tokens_computed, suite.tokens_requested, suite.head_rows);
}

Json SuiteJson(const SuiteResult& suite, const std::vector<ModelVariant>& variants, const PaperSetting& paper) {
  Json json = {{"task", suite.task},
               {"metric", suite.quoted_metric},
               {"files", Json::array()},
               {"items", suite.items},
               {"full_items", suite.full_items},
               {"partial", suite.items != suite.full_items},
               {"shots", suite.shots},
               {"data_hash", suite.data_hash},
               {"template_hash", suite.template_hash},
               {"requests", suite.requests},
               {"tokens_requested", suite.tokens_requested},
               {"tokens_computed", suite.tokens_computed},
               {"head_rows", suite.head_rows},
               {"shared_stages", suite.shared_stages},
               {"seconds", suite.seconds},
               {"variants", Json::array()}};
  for (const auto& file : suite.files) json["files"].push_back(file.string());
  for (size_t v = 0; v < variants.size(); ++v) {
    Json variant = {{"name", variants[v].name}, {"metrics", Json::object()}};
    for (const SuiteScore& score : suite.scores[v]) {
      Json& entry = variant["metrics"][score.metric] = ScoreJson(score);
      if (const auto said = InPaper(paper, suite, variants[v], score)) entry["paper"] = *said;
    }
    json["variants"].push_back(std::move(variant));
  }
  return json;
}

std::vector<PageTable> MeansTables(const SuiteEvaluation& evaluation, const std::vector<ModelVariant>& variants) {
  std::vector<PageTable> tables;
  for (const char* metric : {"", "bits_per_byte", "margin"}) {
    const bool accuracy = *metric == 0;
    PageTable table{{TitleOf(metric)}, {}};
    for (const ModelVariant& variant : variants) table.header.push_back(variant.name);
    for (const SuiteResult& suite : evaluation.suites) {
      if (!accuracy && suite.Find(0, metric) == nullptr) continue;
      std::vector<std::string>& row = table.rows.emplace_back(std::vector{suite.title});
      for (size_t v = 0; v < variants.size(); ++v)
        row.push_back(Value(accuracy ? Quoted(suite, v) : *suite.Find(v, metric)));
    }
    for (const SuiteMeans& means : evaluation.means) {
      if (means.metric != metric || means.tasks < 2) continue;
      std::vector<std::string> mean = {fmt::format("mean of {} tasks", means.tasks)},
                               difference = {"  to " + variants[0].name};
      for (const SuiteMean& of_variant : means.models) {
        mean.push_back((accuracy ? Percent : WithError)(of_variant.value, of_variant.standard_error));
        difference.push_back(of_variant.to_first ? Difference(*of_variant.to_first, accuracy) : "");
      }
      table.rows.push_back(std::move(mean));
      if (variants.size() > 1) table.rows.push_back(std::move(difference));
    }
    if (!table.rows.empty()) tables.push_back(std::move(table));
  }
  return tables;
}

std::string AveragedNames(const SuiteEvaluation& evaluation) {
  if (evaluation.averaged.size() < 2 || evaluation.averaged.size() == evaluation.suites.size()) return "";
  return fmt::format("The means are over {}.", fmt::join(evaluation.averaged_titles, ", "));
}

Json MeansJson(const SuiteEvaluation& evaluation, const std::vector<ModelVariant>& variants) {
  Json json = Json::array();
  for (const SuiteMeans& means : evaluation.means) {
    for (size_t v = 0; v < means.models.size(); ++v) {
      const SuiteMean& mean = means.models[v];
      Json entry = {{"tasks", means.tasks}, {"value", mean.value}, {"standard_error", mean.standard_error}};
      if (mean.to_first) entry["to_first"] = DifferenceJson(*mean.to_first);
      if (means.metric.empty()) {
        entry["name"] = variants[v].name;
        entry["over"] = evaluation.averaged;
        json.push_back(std::move(entry));
      } else {
        json[v][means.metric] = std::move(entry);
      }
    }
  }
  return json;
}

}  // namespace shiftrt
