// SPDX-License-Identifier: Apache-2.0
// Binds measurements: perplexity, suites and scores.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/native/common.h"

namespace shiftrt::python {

namespace {

auto Perplexity(const LanguageModel& model, const std::string& text, const std::string& protocol, int64_t tokens,
                const Resources& resources, nb::object progress) {
  Reports reports(std::move(progress));
  const TextPerplexity measured = Released(
      [&] { return MeasurePerplexity(model, text, {.protocol = protocol, .tokens = tokens}, resources, &reports); });
  return std::tuple(measured.perplexity, measured.mean_nll, measured.predicted, measured.window, measured.tokens,
                    measured.all, measured.text, measured.seconds);
}

using Metric = std::tuple<std::string, double, double>;
using TaskScores = std::tuple<std::string, std::string, int64_t, double, std::vector<std::vector<Metric>>>;

std::vector<TaskScores> EvaluateModels(const std::vector<LanguageModel>& models, const nb::dict& values,
                                       const Resources& resources, nb::object progress) {
  SuiteSettings settings;
  SetAll(values, settings);
  Reports reports(std::move(progress));
  return Released([&] {
    std::vector<TaskScores> all;
    for (const SuiteResult& result : Evaluate(models, settings, resources, &reports)) {
      std::vector<std::vector<Metric>> scores(result.scores.size());
      for (size_t m = 0; m < scores.size(); ++m) {
        scores[m].reserve(result.scores[m].size());
        for (const SuiteScore& score : result.scores[m])
          scores[m].emplace_back(score.metric, score.value, score.standard_error);
      }
      all.emplace_back(result.task, result.quoted_metric, result.items, result.seconds, std::move(scores));
    }
    return all;
  });
}

using TokenSequence = std::pair<std::vector<int32_t>, int64_t>;  // token ids, and how many of the last are scored

std::vector<TokenSequence> TokenSequencesOf(std::vector<ScoredSequence> sequences) {
  std::vector<TokenSequence> pairs;
  pairs.reserve(sequences.size());
  for (ScoredSequence& sequence : sequences) pairs.emplace_back(std::move(sequence.tokens), sequence.scored);
  return pairs;
}

std::vector<TokenSequence> EncodedContinuations(const LanguageModel& model,
                                                const std::vector<std::pair<std::string, std::string>>& texts) {
  return TokenSequencesOf(Released([&] {
    std::vector<Continuation> continuations;
    continuations.reserve(texts.size());
    for (const auto& [context, text] : texts) continuations.push_back({context, text});
    return EncodeContinuations(model, continuations);
  }));
}

std::vector<std::pair<double, bool>> Scores(const LanguageModel& model, const std::vector<TokenSequence>& sequences,
                                            const Resources& resources, nb::object progress) {
  Reports reports(std::move(progress));
  return Released([&] {
    std::vector<ScoredSequence> wanted;
    wanted.reserve(sequences.size());
    for (const auto& [tokens, scored] : sequences) wanted.push_back({tokens, scored});
    std::vector<std::pair<double, bool>> scores;
    scores.reserve(wanted.size());
    for (const SequenceScore& score : ScoreSequences(model, wanted, resources, &reports))
      scores.emplace_back(score.log_likelihood, score.greedy);
    return scores;
  });
}

}  // namespace

void AddEvaluation(nb::module_& module) {
  module.def("perplexity", &Perplexity, "model"_a, "text"_a, "protocol"_a, "tokens"_a, "resources"_a,
             "progress"_a.none(), "Measures perplexity on a text file.");
  module.def("evaluate", &EvaluateModels, "models"_a, "settings"_a, "resources"_a, "progress"_a.none(),
             "Runs suites: (task, quoted metric, items, seconds, metrics of each model) each.");
  module.def(
      "tasks",
      [] {
        std::vector<std::tuple<std::string, std::string, int64_t, std::string>> tasks;
        for (const SuiteName& task : SuiteNames())
          tasks.emplace_back(task.name, task.title, task.items, task.quoted_metric);
        return tasks;
      },
      "(name, title, items, quoted metric) of each task of evaluate().");
  module.def("score", &Scores, "model"_a, "sequences"_a, "resources"_a, "progress"_a.none(),
             "Scores the last tokens of (token ids, count): (log-likelihood, greedy) each.");
  module.def("encode_continuations", &EncodedContinuations, "model"_a, "texts"_a,
             "Encodes (context, text) pairs as lm-evaluation-harness does: (token ids, count of scored ones) each.");
  module.def(
      "encode_document",
      [](const LanguageModel& model, const std::string& document) {
        return TokenSequencesOf(Released([&] { return EncodeDocument(model, document); }));
      },
      "model"_a, "document"_a, "Encodes the windows of a document: (token ids, count of scored ones) each.");
}

}  // namespace shiftrt::python
