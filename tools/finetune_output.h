// SPDX-License-Identifier: Apache-2.0
// What a training shows while it runs, and what it found: lines, JSON and a page.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shiftrt/finetune.h"
#include "tools/report/page.h"

namespace shiftrt {

// A line on standard output per validation and, on a terminal, a bar with loss, last validation loss, tokens per second
// and time left on standard error.
class TrainingDisplay {
 public:
  TrainingDisplay(bool quiet, const FinetuneSettings& settings);
  void operator()(const TrainingHistory& history, int64_t steps);

 private:
  // Says once how much the training will do, as far as its first steps tell.
  void ShowPlan(const TrainingHistory& history, int64_t steps);

  bool terminal_, timed_, drawn_ = false;  // timed: how many steps there will be is an estimate
  bool planned_ = false;                   // the plan was shown
  int64_t budget_tokens_;                  // 0: the budget is not in tokens
  double validate_every_;
  int64_t sequences_;  // sequences per step
  std::chrono::steady_clock::time_point last_;
  const char* validation_;  // the name of the validation loss
  size_t validations_ = 0;  // the number of validations that were shown
};

struct TrainingShow {
  std::string name;       // "" where there is one training alone
  bool describes = true;  // the model and the text too
  bool quiet = false;
  bool first = true;  // true for the process that writes
};
// A file of the cache for the checkpoint of a training whose result is not saved. Another training has another file.
std::filesystem::path CachedCheckpoint(const LanguageModel& model, const FinetuneSettings& settings,
                                       const Resources& resources);
// Finetune(), with what it does and how it goes on standard output, and on standard error from where an interrupted
// training continues. Answers of own texts are kept in the cache (CacheDirectory).
FinetunedModel TrainShown(const LanguageModel& model, FinetuneSettings settings, const Resources& resources,
                          const TrainingShow& show);

// Warns on standard error if rounding has lost most of the change that was trained. `error` is
// FinetunedModel::rounding; kUnrounded: only factors of LoRA are saved, and rounded when the model is opened.
enum class SavedChange : uint8_t { kRounded, kUnrounded };
void WarnOfRounding(double error, SavedChange saved);

// One training of a command: its name among several, and what came of it.
struct TrainingOutcome {
  std::string name;  // "" where there is one alone
  FinetunedModel trained;
  bool kept_best = false;
  double perplexity = 0;  // perplexity of the held-out text; 0: not measured
};

// The mean training loss of up to `points` parts of the steps, each at its last step.
struct LossCurve {
  std::vector<double> steps, losses;
};
LossCurve SmoothedLosses(const TrainingHistory& history, int64_t points = 100);

nlohmann::json TrainingJson(const TrainingOutcome& outcome);

// Loss and size of the gradient by step, and a table.
Page TrainingPage(const std::string& title, const std::string& summary, const std::vector<TrainingOutcome>& outcomes);

}  // namespace shiftrt
