// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/finetune.h"

#include <algorithm>
#include <span>
#include <utility>

#include "api/impl.h"
#include "api/own_text.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/processes.h"
#include "runtime/words.h"
#include "text/mixture.h"
#include "train/finetune.h"
#include "types/training.h"

namespace shiftrt {

namespace {

// Throws UsageError for values out of their range.
void CheckSettings(const FinetuneSettings& settings) {
  CheckBounds(settings);
  const auto& [seconds, tokens] = settings.budget;
  if (settings.validation < 0) FailUsage(Field("validation"), "{}, expected at least 0", settings.validation);
  if (!(seconds >= 0 && tokens >= 0))
    FailUsage(Field("budget"), "{} seconds and {} tokens, expected at least 0", seconds, tokens);
  if (seconds > 0 && tokens > 0)
    FailUsage(Field("budget"), "{} seconds and {} tokens; give one of them", seconds, tokens);
}

// The settings, checked, with the text that an empty one stands for, and sequences that the model takes.
FinetuneSettings WithText(FinetuneSettings settings, const Model& model) {
  CheckSettings(settings);
  if (settings.text.empty()) {
    const std::filesystem::path text = model.directory / "calibration.txt";
    if (!Exists(text)) FailUsage(Field("text"), "there is no {}; give a file with text to learn from", text.string());
    settings.text = text.string();
  }
  settings.length = std::min(settings.length, model.weights->config.max_positions);
  return settings;
}

// The steps whose sequences have at least so many tokens.
int64_t StepsForTokens(const FinetuneSettings& settings, const TrainingText& text) {
  ReadingOrder order(text.sequences(), settings.batch, settings.seed);
  int64_t steps = 0, tokens = 0;
  for (; tokens < settings.budget.tokens; ++steps)
    for (const int64_t s : order.Step(steps)) tokens += text.offsets[s + 1] - text.offsets[s];
  return steps;
}

int64_t StepsOf(const FinetuneSettings& settings, const TrainingText& text) {
  if (settings.budget.tokens > 0) return StepsForTokens(settings, text);
  const int64_t sequences = text.sequences();
  const int64_t per_epoch = ReadingOrder(sequences, settings.batch, 0).steps_per_epoch();
  const int64_t most = per_epoch * settings.epochs;
  if (settings.steps > most)
    FailUsage(Field("steps"), "{}: the text has {} sequences, which make {} of {} in {}; {} epochs take it",
              settings.steps, sequences, Counted(most, "step"), settings.batch, Counted(settings.epochs, "epoch"),
              (settings.steps + per_epoch - 1) / per_epoch);
  return settings.steps > 0 ? settings.steps : most;
}

Schedule ScheduleOf(const FinetuneSettings& settings, const TrainingText& text, int64_t hidden) {
  Schedule schedule = {.decay = settings.decay, .rate = settings.rate};
  if (settings.rate == 0 && settings.method == Method::kPartial && settings.layers == "all") {
    schedule.rate = RecoveryRate(hidden);
  } else if (settings.rate == 0) {
    schedule.rate = DefaultRate(settings.method, hidden);
    schedule.adapters = DefaultRate(Method::kAdapters, hidden) / schedule.rate;
    schedule.head = DefaultRate(Method::kPartial, hidden) / schedule.rate;
  }
  if (settings.budget.seconds > 0) {
    if (!(settings.warmup >= 0 && settings.warmup < 1))
      FailUsage(Field("warmup"), "{} steps; a training of so many seconds takes a share of it, such as 0.03",
                settings.warmup);
    return schedule;
  }
  schedule.steps = StepsOf(settings, text);
  schedule.warmup = WarmupSteps(settings.warmup, schedule.steps);
  return schedule;
}

// A training whose settings, text and length are known to go together.
struct Prepared {
  Prepared(const Model& model, FinetuneSettings given, std::span<const OwnAnswers> answers = {})
      : settings(std::move(given)) {
    // The time that answers have taken is a part of the budget.
    for (const OwnAnswers& own : answers)
      if (settings.budget.seconds > 0) settings.budget.seconds -= own.seconds;
    texts = LoadTrainingTexts(settings, model.RequireTokenizer(), answers);
    schedule = ScheduleOf(settings, texts.training, model.weights->config.hidden);
    if (settings.keep_best && texts.validation.sequences() == 0)
      FailUsage(Field("keep_best"), "the best state is known by its validation loss; hold some sequences out");
  }
  FinetuneSettings settings;
  TrainingTexts texts;
  Schedule schedule;
};

// The model's own provenance with that of the training. It holds no times: the same training gives the same files.
Provenance ProvenanceOf(const FinetuneJob& job, const TrainingHistory& history) {
  Provenance made = job.model.provenance.value_or(Provenance());
  FinetuneReport tuning = {.settings = SettingsOf(job),
                           .text = job.texts.source,
                           .correction_before = std::exchange(made.recipe.correction, "finetuned"),
                           .merge_before = std::exchange(made.recipe.merge, "off"),
                           .tokens = history.tokens,
                           .loss = history.losses.back(),
                           .validation = {}};
  if (!history.validations.empty())
    tuning.validation = {history.validations.front().loss, history.ValidationLoss(job.settings.keep_best)};
  made.finetune = std::move(tuning);
  return made;
}

// The model with the trained plan, which is moved out of `result`. LoRA factors are merged in the plan that runs, and
// kept apart for Save(); what merging loses by rounding then counts in result.rounding.
LanguageModel Tuned(const Model& original, TrainingResult& result, Provenance made) {
  LanguageModel::Impl impl{original};
  impl.model.plan = result.plan;
  impl.model.provenance = std::move(made);
  impl.model.lora = nullptr;
  if (result.lora) {
    impl.model.lora = std::make_shared<const Lora>(std::move(*result.lora));
    impl.model.plan = MergeLora(*original.weights, result.plan, *impl.model.lora);
    impl.model.unmerged = result.plan;
    impl.without_lora = std::move(result.plan);
    const double merging = MergeError(*original.weights, *impl.without_lora, *impl.model.lora, impl.model.plan);
    result.rounding = std::max(result.rounding, merging);
  }
  return LanguageModel(std::make_shared<const LanguageModel::Impl>(std::move(impl)));
}

}  // namespace

FinetuneSettings RecoverySettings(const TrainingBudget& budget) {
  FinetuneSettings settings;
  settings.method = Method::kPartial;
  settings.layers = "all";
  settings.adapters = settings.keep_best = true;
  settings.loss = TrainingLoss::kCrossEntropy;
  settings.decay = Decay::kCosine;
  settings.length = 1024;
  settings.divide = true;
  settings.batch = 1;
  settings.validation = 48;
  settings.validate_every = 0.1;
  settings.budget = budget;
  return settings;
}

void CheckFinetune(const LanguageModel& model, const FinetuneSettings& settings) {
  const Model& original = model.impl().model;
  const FinetuneSettings checked = WithText(settings, original);
  CheckTrained(original, checked);
  if (HasOwnTexts(checked.text)) {
    CheckOwnTexts(original, checked);
  } else {
    [[maybe_unused]] const Prepared throws_if_unfit(original, checked);
  }
}

FinetunedModel Finetune(const LanguageModel& model, const FinetuneSettings& settings, const Resources& resources,
                        const FinetuneObserver& observer) {
  const Model& original = model.impl().model;
  const Context context = MakeContext(resources).ReducedPrecision();
  const auto turn = context.TakeTurn();
  const FinetuneSettings checked = WithText(settings, original);
  CheckTrained(original, checked);  // before answers are generated
  std::vector<OwnAnswers> answers;
  if (HasOwnTexts(checked.text)) answers = AnswerOwnTexts(original, checked, context, observer);
  const Prepared prepared(original, checked, answers);
  const auto& [training, texts, schedule] = prepared;
  context.processes->CheckSame("training text (hash)", texts.hash);
  TrainingOutline outline = {.text = texts.source,
                             .accounting = texts.accounting,
                             .steps = training.budget.seconds > 0 ? 0 : schedule.steps,
                             .rate = schedule.rate,
                             .adapter_rate = schedule.rate * schedule.adapters,
                             .head_rate = schedule.rate * schedule.head};
  const auto announce = [&](const std::string& summary) {
    outline.trained = summary;
    if (observer.begin) observer.begin(outline);
  };
  const auto step = [&](const TrainingHistory& history, int64_t steps) {
    CheckInterrupted();
    if (observer.step) observer.step(history, steps);
  };
  const FinetuneJob job = {context, original, texts, training, schedule, announce, step, observer.warn, observer.poll};
  TrainingResult result = Finetune(job);
  LanguageModel tuned = Tuned(original, result, ProvenanceOf(job, result.history));
  return {std::move(tuned),   outline,        result.history, result.parameters, result.peak_bytes,
          result.kept_blocks, result.rounding};
}

}  // namespace shiftrt
