// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/evaluate.h"

#include <algorithm>

#include "api/impl.h"
#include "eval/evaluate.h"
#include "eval/metrics.h"
#include "eval/perplexity.h"
#include "eval/requests.h"
#include "eval/scorer.h"
#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "runtime/text.h"
#include "text/documents.h"

namespace shiftrt {

TextPerplexity MeasurePerplexity(const LanguageModel& model, const std::string& text,
                                 const PerplexitySettings& settings, const Resources& resources, Progress* progress) {
  const Model& inner = model.impl().model;
  const int64_t window = ProtocolWindow(settings.protocol, inner.weights->config);
  const std::filesystem::path file = ResolveText(text);
  std::vector<int32_t> tokens =
      inner.RequireTokenizer().EncodeWithBos(PerplexityText(ReadText(file), file), file.string());
  TextPerplexity measured{.all = std::ssize(tokens), .text = file.filename().string()};
  if (settings.tokens > 0) tokens.resize(std::min<size_t>(tokens.size(), std::max(settings.tokens, window)));
  measured.tokens = std::ssize(tokens);
  Decoder decoder(MakeContext(resources), inner.weights, inner.plan);
  ProgressOf reports(progress);
  {
    const Stopwatch watch(measured.seconds);
    const PerplexityResult result = WindowedPerplexity(decoder, tokens, window, settings.protocol, reports);
    measured.perplexity = result.perplexity;
    measured.mean_nll = result.mean_nll;
    measured.predicted = result.predicted;
    measured.window = result.window;
  }
  return measured;
}

std::vector<SuiteResult> Evaluate(std::span<const LanguageModel> models, const SuiteSettings& settings,
                                  const Resources& resources, Progress* progress) {
  if (models.empty()) FailUsage(Field("models"), "there is none");
  const Model& first = models.front().impl().model;
  std::vector<Variant> variants;
  for (const LanguageModel& model : models) {
    if (model.impl().model.weights != first.weights)
      FailUsage(Field("models"), "{} and {} do not share their weights", first.name, model.Name());
    const std::string name = std::to_string(variants.size());
    variants.push_back({VariantKind::kOriginal, name, name, model.impl().model.plan});
  }
  const DataOptions data{settings.data, settings.limit, settings.shots};
  std::vector<Dataset> datasets;  // all of them first: what is missing is then found before hours of work
  for (const Task* task : ParseTasks(settings.tasks)) datasets.push_back(LoadDataset(*task, data));
  const Context context = MakeContext(resources);
  ProgressOf reports(progress);
  Journal journal("");
  const EvalJob job = {context, first, variants, {}, journal, reports};
  std::vector<SuiteResult> results;
  for (const Dataset& dataset : datasets) {
    const EvalScores scores = Evaluate(job, dataset);
    SuiteResult& result = results.emplace_back(
        SuiteResult{dataset.task->name, dataset.task->metric, std::ssize(dataset.items), scores.seconds, {}});
    for (const auto& of_variant : scores.scores) {
      std::vector<SuiteScore>& list = result.scores.emplace_back();
      for (const Metric& metric : Measure(*dataset.task, dataset.items, of_variant, /*all=*/false))
        list.push_back({metric.name, metric.estimate.value, metric.estimate.error});
    }
  }
  return results;
}

namespace {

PromptEncoder EncoderOf(const LanguageModel& model) {
  return {model.impl().model.RequireTokenizer(), EvalOptions().bos, model.Shape().max_positions};
}

}  // namespace

std::vector<ScoredSequence> EncodeContinuations(const LanguageModel& model,
                                                std::span<const Continuation> continuations) {
  PromptEncoder encoder = EncoderOf(model);
  std::vector<ScoredSequence> sequences;
  sequences.reserve(continuations.size());
  for (const Continuation& continuation : continuations) {
    ScoringRequest request =
        encoder.Encode({continuation.context, continuation.text}, fmt::format("continuation {}", sequences.size()));
    sequences.push_back({std::move(request.tokens), request.scored});
  }
  return sequences;
}

std::vector<ScoredSequence> EncodeDocument(const LanguageModel& model, const std::string& document) {
  std::vector<ScoredSequence> windows;
  for (ScoringRequest& request : EncoderOf(model).EncodeRolling(document))
    windows.push_back({std::move(request.tokens), request.scored});
  return windows;
}

std::vector<SequenceScore> ScoreSequences(const LanguageModel& model, std::span<const ScoredSequence> sequences,
                                          const Resources& resources, Progress* progress) {
  const Model& inner = model.impl().model;
  const int64_t longest = inner.weights->config.max_positions + 1;
  std::vector<ScoringRequest> requests;
  requests.reserve(sequences.size());
  for (const ScoredSequence& sequence : sequences) {
    const int64_t length = std::ssize(sequence.tokens);
    if (length > longest || sequence.scored < 1 || sequence.scored >= length)
      FailUsage(Field("sequences"),
                "{} of {} tokens are to be scored; a sequence has 2 to {}, and its first is not scored",
                sequence.scored, length, longest);
    requests.push_back({sequence.tokens, sequence.scored});
  }
  Decoder decoder(MakeContext(resources), inner.weights, inner.plan);
  ProgressOf reports(progress);
  std::vector<SequenceScore> scores(sequences.size());
  reports.Begin("scores", std::ssize(sequences));
  for (const PackedBatch& packed : Pack(requests, EvalOptions().batch_tokens)) {
    const std::vector<Score> batch = ScoreBatch(decoder, packed, decoder.Forward(packed.batch));
    for (size_t m = 0; m < batch.size(); ++m)
      scores[static_cast<size_t>(packed.members[m].request)] = {batch[m].log_likelihood, batch[m].greedy};
    reports.Advance(std::ssize(batch));
  }
  reports.End();
  return scores;
}

}  // namespace shiftrt
