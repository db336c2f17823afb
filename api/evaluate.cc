// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/evaluate.h"

#include <algorithm>
#include <chrono>

#include "api/impl.h"
#include "eval/evaluate.h"
#include "eval/item_log.h"
#include "eval/metrics.h"
#include "eval/perplexity.h"
#include "eval/programs/runner.h"
#include "eval/requests.h"
#include "eval/scorer.h"
#include "eval/summary.h"
#include "runtime/check.h"
#include "runtime/processes.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

TextPerplexity MeasurePerplexity(const LanguageModel& model, const std::string& text,
                                 const PerplexitySettings& settings, const Resources& resources, Progress* progress) {
  const Model& inner = model.impl().model;
  const int64_t window = ProtocolWindow(settings.protocol, inner.weights->config);
  const HeldOutText read =
      ReadHeldOutText(model, text, settings.tokens > 0 ? std::max(settings.tokens, window) : settings.tokens);
  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  PlanTree plan(context, inner.weights, {inner.plan});
  ProgressOf reports(progress);
  const auto start = std::chrono::steady_clock::now();
  TextPerplexity measured = WindowedPerplexities(plan, read.tokens, window, reports).front();
  measured.seconds = SecondsSince(start);
  measured.tokens = std::ssize(read.tokens);
  measured.all = read.all;
  measured.text = read.source;
  return measured;
}

std::vector<SuiteName> SuiteNames() {
  std::vector<SuiteName> names;
  for (const Task& task : Tasks()) names.push_back({task.name, task.title, task.rows, task.metric});
  return names;
}

Suites::Suites() : impl_(std::make_shared<const Impl>()) {}

Suites::Suites(const SuiteSettings& settings) {
  Impl read{settings, ParseBos(settings.bos), {}};
  bool runs_programs = false;
  for (const Task* task : ParseTasks(settings.tasks)) {
    read.datasets.push_back(LoadDataset(*task, settings));
    runs_programs = runs_programs || task->program != nullptr;
  }
  if (runs_programs) ProgramRunner();  // that it cannot run programs is not to be found out after all replies
  impl_ = std::make_shared<const Impl>(std::move(read));
}

bool Suites::empty() const { return impl_->datasets.empty(); }

SuiteEvaluation Evaluate(std::span<const ModelVariant> variants, const Suites& suites, const SuiteReports& reports,
                         const Resources& resources) {
  if (variants.empty()) FailUsage(Field("models"), "there is none");
  const Suites::Impl& data = suites.impl();
  const Model &first = variants.front().model.impl().model, &model = variants.back().model.impl().model;
  const bool apart = first.weights != model.weights;  // the first has weights of its own
  std::vector<Variant> all;
  int64_t parameters = 0;  // the size of the largest correction
  for (const ModelVariant& variant : variants) {
    if (&variant != &variants.front()) RequireSharedWeights(variants.back().model, variant.model);
    all.push_back({variant.name, variant.model.impl().model.plan});
    parameters = std::max(parameters, variant.model.Parameters());
  }
  const std::vector<Variant> originals(all.begin(), all.begin() + (apart ? 1 : 0)),
      others(all.begin() + (apart ? 1 : 0), all.end());

  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  Processes& processes = *context.processes;
  ProgressOf progress(reports.progress);
  const EvalOptions options{.bos = data.bos};
  PromptEncoder encoder(model.RequireTokenizer(), data.bos, model.weights->config.max_positions);
  Journal journal(reports.journal, processes.rank());
  if (processes.first() && reports.tell) {
    for (const std::string& bad : journal.bad()) reports.tell(bad + "; its items are scored again");
    if (journal.batches() > 0)
      reports.tell(
          fmt::format("{} has {} batches of an evaluation that was interrupted; if this one needs the same, they are "
                      "not scored again",
                      journal.file().string(), journal.batches()));
    if (journal.replies() > 0)
      reports.tell(
          fmt::format("{} has {} replies of an evaluation that was interrupted; if this one needs the same, they are "
                      "not generated again",
                      journal.file().string(), journal.replies()));
  }
  std::optional<ItemLog> items;
  if (processes.first() && !reports.items.empty()) items.emplace(reports.items, encoder);
  SuiteEvaluation evaluation;
  std::vector<const Task*> evaluated;
  for (const Dataset& dataset : data.datasets) {
    EvalScores scores = Evaluate({context, model, others, options, journal, progress}, dataset);
    if (apart) scores.PutFirst(Evaluate({context, first, originals, options, journal, progress}, dataset));
    const SuiteResult& result = evaluation.suites.emplace_back(Summarize(dataset, scores, data.settings.all_metrics));
    if (reports.done) reports.done(result);
    if (items) items->Add(dataset, all, scores);
    evaluated.push_back(dataset.task);
  }
  const std::vector<const Task*> averaged = AveragedTasks(evaluated, parameters);
  for (const Task* task : averaged) {
    evaluation.averaged.push_back(task->name);
    evaluation.averaged_titles.push_back(task->title);
  }
  for (const char* metric : {"", kBitsPerByte, kMargin})
    if (SuiteMeans means = Means(evaluation.suites, averaged, metric); !means.models.empty())
      evaluation.means.push_back(std::move(means));
  if (items) items->Commit();
  processes.Barrier();  // after it nobody adds to the journal
  return evaluation;
}

void RemoveJournal(const std::filesystem::path& journal) { Journal::Remove(journal); }

std::vector<SuiteResult> Evaluate(std::span<const LanguageModel> models, const SuiteSettings& settings,
                                  const Resources& resources, Progress* progress) {
  std::vector<ModelVariant> variants;
  for (const LanguageModel& model : models) {
    RequireSharedWeights(models.front(), model);
    const std::string name = std::to_string(variants.size());
    variants.push_back({name, name, model});
  }
  if (variants.empty()) FailUsage(Field("models"), "there is none");
  return Evaluate(variants, Suites(settings), {.progress = progress}, resources).suites;
}

bool AddsBos(const LanguageModel& model, const std::string& bos) {
  return PromptEncoder(model.impl().model.RequireTokenizer(), ParseBos(bos), model.Shape().max_positions).adds_bos();
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
  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  Decoder decoder(context, inner.weights, inner.plan);
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
