// SPDX-License-Identifier: Apache-2.0
// Fine-tuning as a whole: from a model and text to a plan.
#pragma once

#include <optional>
#include <string>

#include "models/lora.h"
#include "models/model.h"
#include "train/loop.h"
#include "train/objectives.h"
#include "train/parameters.h"
#include "train/text.h"

namespace shiftrt {

// It holds references; its maker keeps the objects alive.
struct FinetuneJob {
  const Context& context;
  const Model& model;
  const TrainingTexts& texts;
  const FinetuneSettings& settings;  // all but those of the text, which is loaded
  Schedule schedule;
  // Told what is trained, before the first step. May be empty.
  std::function<void(const std::string& summary)> announce;
  TrainingObserver observer;                                // may be empty
  std::function<void(const std::string& words)> warn = {};  // TrainingJob::warn
  std::function<void()> poll = {};                          // TrainingJob::poll
};

struct TrainingResult {
  DepthPlan plan;            // with the trained values, but without LoRA
  std::optional<Lora> lora;  // the factors of Method::kLora
  TrainingHistory history;
  int64_t parameters = 0;    // parameters that are trained
  int64_t peak_bytes = 0;    // the peak of the engine's buffers
  int64_t kept_blocks = 0;   // blocks whose activations the last step kept
  double rounding = 0;       // the share of the change of blocks and head that rounding has lost
  size_t shared_blocks = 0;  // leading blocks that ran once for the teacher and the model that is trained
};

// The plan of the original model, as a teacher or as a writer. Throws UsageError for the field that asks for it where
// the model was saved with weights of its own and has no others.
DepthPlan OriginalPlan(const Model& model, const char* field);

// Throws UsageError for settings of what is trained, and of the loss, that the model does not go with.
void CheckTrained(const Model& model, const FinetuneSettings& settings);

// Throws what CheckTrained() and Train() throw. The checkpoint is left in
// place: its maker removes it once the result is saved.
TrainingResult Finetune(const FinetuneJob& job);

// The settings that decide the result of a job, with the fingerprints of model, plan and text.
TrainingSettings SettingsOf(const FinetuneJob& job);

}  // namespace shiftrt
