// SPDX-License-Identifier: Apache-2.0
#include "tools/finetune_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/stopwatch.h"
#include "runtime/words.h"
#include "text/documents.h"
#include "text/mixture.h"
#include "tools/cache.h"
#include "tools/progress_bar.h"
#include "tools/standard_output.h"
#include "tools/table.h"
#include "types/training.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kRedrawSeconds = 0.2;
constexpr int64_t kSmoothed = 20;  // steps whose mean loss is shown

double Speed(const TrainingHistory& history) {
  return history.seconds > 0 ? static_cast<double>(history.tokens) / history.seconds : 0;
}

// "loss 3.2104, 850 tokens/s, 1:20 left" after at least one step.
std::string State(const TrainingHistory& history, int64_t steps) {
  const int64_t done = history.steps();
  const double left = history.seconds / static_cast<double>(done) * static_cast<double>(steps - done);
  return fmt::format("loss {:.4f}, {:.0f} tokens/s, {} left",
                     history.MeanLoss(std::max<int64_t>(0, done - kSmoothed), done), Speed(history), Duration(left));
}

std::string Named(const std::string& name, const char* what) {
  return name.empty() ? what : fmt::format("{} ({})", what, name);
}

Series Line(const std::string& name, const LossCurve& curve, int color) {
  return {name, Mark::kLine, curve.steps, curve.losses, color};
}

// The name of the loss that validations measure.
const char* ValidationName(const FinetuneSettings& settings) {
  const bool taught = settings.method != Method::kReplacement && settings.loss != TrainingLoss::kCrossEntropy;
  return taught ? "held-out KL" : "validation loss";
}

// "120 steps" or "0:30:00 of steps".
std::string StepsText(const TrainingOutline& outline, const FinetuneSettings& settings) {
  if (outline.steps > 0) return fmt::format("{} steps", outline.steps);
  return Duration(settings.budget.seconds) + " of steps";
}

// "0.0021, of the adapters 0.00026".
std::string RatesText(const TrainingOutline& outline, const FinetuneSettings& settings) {
  std::string text = fmt::format("{:.2g}", outline.rate);
  const auto add = [&](bool trained, const char* part, double rate) {
    if (trained && rate != outline.rate) text += fmt::format(", of the {} {:.2g}", part, rate);
  };
  add(settings.adapters, "adapters", outline.adapter_rate);
  add(settings.head, "head", outline.head_rate);
  return text;
}

}  // namespace

TrainingDisplay::TrainingDisplay(bool quiet, const FinetuneSettings& settings)
    : terminal_(!quiet && ::isatty(STDERR_FILENO) != 0),
      timed_(settings.budget.seconds > 0),
      budget_tokens_(settings.budget.tokens),
      validate_every_(settings.validate_every),
      sequences_(settings.batch),
      last_(Clock::now()),
      validation_(ValidationName(settings)) {}

void TrainingDisplay::ShowPlan(const TrainingHistory& history, int64_t steps) {
  const auto done = static_cast<double>(history.steps()), all = static_cast<double>(steps);
  double validations = 2;  // before the first step and after the last
  if (validate_every_ >= 1) validations = 1 + std::ceil(all / validate_every_);
  if (validate_every_ > 0 && validate_every_ < 1) validations = 1 + std::min(all, std::ceil(1 / validate_every_));
  // Without a budget in tokens, the steps are taken to have as many as the first.
  const double tokens =
      budget_tokens_ > 0 ? static_cast<double>(budget_tokens_) : static_cast<double>(history.tokens) / done * all;
  std::string text = fmt::format("planned: {}{} steps of {}, about {} tokens", timed_ ? "about " : "", steps,
                                 Counted(sequences_, "sequence"), Scaled(tokens, ""));
  if (history.validation_sequences > 0)
    text += fmt::format(", {:.0f} validations of {} sequences", validations, history.validation_sequences);
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void TrainingDisplay::operator()(const TrainingHistory& history, int64_t steps) {
  const int64_t done = history.steps();
  if (done > 0 && !std::exchange(planned_, true)) ShowPlan(history, steps);
  // Those of a training that continues were shown before.
  if (validations_ == 0 && !history.validations.empty() && history.validations.back().step != done)
    validations_ = history.validations.size();
  const auto place = [&] {
    if (timed_) return done == 0 ? std::string("step 0") : fmt::format("step {} of about {}", done, steps);
    return fmt::format("step {} of {}", done, steps);
  };
  if (history.validations.size() > validations_) {
    if (drawn_) std::fputs("\r\033[K", stderr);
    drawn_ = false;
    validations_ = history.validations.size();
    fmt::print("{}: {} {:.4f}{}\n", place(), validation_, history.validations.back().loss,
               done > 0 ? ", " + State(history, steps) : "");
    std::fflush(stdout);
    return;
  }
  if (!terminal_ || done == 0 || SecondsSince(last_) < kRedrawSeconds) return;
  last_ = Clock::now();
  drawn_ = true;
  const double share = static_cast<double>(done) / static_cast<double>(steps);
  const std::string measured =
      history.validations.empty() ? "" : fmt::format("{} {:.4f}, ", validation_, history.validations.back().loss);
  std::fprintf(stderr, "\r\033[K%s",
               fmt::format("{} {}  {}{}", place(), Bar(share), measured, State(history, steps)).c_str());
}

std::filesystem::path CachedCheckpoint(const LanguageModel& model, const FinetuneSettings& settings,
                                       const Resources& resources) {
  WorkKey key = CommandKey("training", model, resources);
  key.AddRows(FinetuneFields(), settings);
  for (const MixedText& text : MixtureIn(settings.text)) key.AddFile("text", LookForText(text.name));
  return CacheFile("recover", key, ".checkpoint");
}

FinetunedModel TrainShown(const LanguageModel& model, FinetuneSettings settings, const Resources& resources,
                          const TrainingShow& show) {
  const std::filesystem::path& checkpoint = settings.checkpoint;
  const bool answers = HasOwnTexts(settings.text);
  if (answers) settings.answers = CacheDirectory();
  if (show.first && std::filesystem::exists(checkpoint))
    fmt::print(stderr, "shiftrt: continuing from {}, where an interrupted training left off\n", checkpoint.string());
  TrainingDisplay display(show.quiet, settings);
  FinetuneObserver observer;
  const auto answering =
      show.quiet ? std::unique_ptr<Progress>(std::make_unique<NoProgress>()) : std::make_unique<ProgressBar>();
  observer.answers = answering.get();
  observer.step = std::ref(display);
  observer.warn = Tell;
  observer.begin = [&](const TrainingOutline& outline) {
    if (show.describes)
      fmt::print("{}: {} blocks, {} adapters\ntext: {}\n  {}\n", model.Name(), model.Blocks(), model.Adapters(),
                 outline.text, outline.accounting);
    fmt::print("\n{}{}{}: {} of {} sequences, learning rate {}\n  {}\n", Name(settings.method),
               show.name.empty() ? "" : ", adapters ", show.name, StepsText(outline, settings), settings.batch,
               RatesText(outline, settings), outline.trained);
    std::fflush(stdout);
  };
  try {
    return Finetune(model, settings, resources, observer);
  } catch (const Interrupted&) {
    if (show.first && std::filesystem::exists(checkpoint))
      fmt::print(stderr, "shiftrt: the training is kept in {}; the same command continues from there\n",
                 checkpoint.string());
    else if (show.first && answers && !settings.answers.empty())
      fmt::print(stderr, "shiftrt: finished answers are kept in {}; the same command continues from there\n",
                 settings.answers.string());
    throw;
  }
}

void WarnOfRounding(double error, SavedChange saved) {
  constexpr double kMuch = 0.75;  // 0.6 of bfloat16 was seen to cost less than 0.3% of perplexity
  if (error <= kMuch) return;
  fmt::print(stderr,
             "shiftrt: rounding to the type of the weights errs by {:.0f}% of the change that was trained; {}\n",
             100 * error,
             saved == SavedChange::kRounded
                 ? "the same command with --dtype float32 rounds nothing"
                 : "it is saved unrounded, and commands with --dtype float32 merge it without rounding");
}

LossCurve SmoothedLosses(const TrainingHistory& history, int64_t points) {
  LossCurve curve;
  const int64_t steps = history.steps(), width = std::max<int64_t>(1, (steps + points - 1) / points);
  for (int64_t begin = 0; begin < steps; begin += width) {
    const int64_t end = std::min(begin + width, steps);
    curve.steps.push_back(static_cast<double>(end));
    curve.losses.push_back(history.MeanLoss(begin, end));
  }
  return curve;
}

nlohmann::json TrainingJson(const TrainingOutcome& outcome) {
  const TrainingHistory& history = outcome.trained.history;
  nlohmann::json json = {{"name", outcome.name},
                         {"steps", history.steps()},
                         {"resumed_at", history.resumed},
                         {"parameters", outcome.trained.parameters},
                         {"rounding", outcome.trained.rounding},
                         {"peak_bytes", outcome.trained.peak_bytes},
                         {"kept_blocks", outcome.trained.kept_blocks},
                         {"tokens", history.tokens},
                         {"seconds", history.seconds},
                         {"validation_seconds", history.validation_seconds},
                         {"validation_sequences", history.validation_sequences},
                         {"tokens_per_second", Speed(history)},
                         {"losses", history.losses},
                         {"gradient_norms", history.gradient_norms},
                         {"validation", nlohmann::json::array()}};
  for (const auto& [step, loss] : history.validations) json["validation"].push_back({{"step", step}, {"loss", loss}});
  if (outcome.kept_best) json["best_step"] = history.BestStep();
  if (outcome.perplexity > 0) json["perplexity"] = outcome.perplexity;
  return json;
}

Page TrainingPage(const std::string& title, const std::string& summary, const std::vector<TrainingOutcome>& outcomes) {
  Chart loss, norm;
  loss.name = "loss";
  loss.title = "Loss";
  norm.name = "gradient-norm";
  norm.title = "Norm of the gradient before clipping";
  loss.x_label = norm.x_label = "steps";
  loss.whole_x = norm.whole_x = true;
  norm.log_y = true;
  PageTable table{{"training", "parameters", "steps", "validation loss before", "after", "tokens/s", "perplexity"}, {}};
  int color = 0;
  for (const TrainingOutcome& outcome : outcomes) {
    const TrainingHistory& history = outcome.trained.history;
    loss.series.push_back(Line(Named(outcome.name, "training"), SmoothedLosses(history), color));
    Series validation{Named(outcome.name, "validation"), Mark::kLineAndDots, {}, {}, color + 1};
    for (const auto& [step, value] : history.validations) {
      validation.x.push_back(static_cast<double>(step));
      validation.y.push_back(value);
    }
    loss.series.push_back(validation);
    Series norms{outcome.name, Mark::kLine, {}, history.gradient_norms, color};
    for (int64_t step = 1; step <= history.steps(); ++step) norms.x.push_back(static_cast<double>(step));
    norm.series.push_back(std::move(norms));
    color += 2;
    const bool validated = !history.validations.empty();
    table.rows.push_back({outcome.name.empty() ? "training" : outcome.name, std::to_string(outcome.trained.parameters),
                          std::to_string(history.steps()),
                          validated ? fmt::format("{:.4f}", history.validations.front().loss) : "-",
                          validated ? fmt::format("{:.4f}", history.ValidationLoss(outcome.kept_best)) : "-",
                          fmt::format("{:.0f}", Speed(history)),
                          outcome.perplexity > 0 ? fmt::format("{:.2f}", outcome.perplexity) : "-"});
  }
  Page page{title, summary, {}};
  page.sections.push_back({"Result", "Losses are means in nats per predicted token.", {table}});
  page.sections.push_back({"Course",
                           "The training loss of a step is that of its batch before the step; the line shows means of "
                           "neighbouring steps. Validation sequences are never learnt from.",
                           {loss, norm}});
  return page;
}

}  // namespace shiftrt
