// SPDX-License-Identifier: Apache-2.0
/// \file
/// Fine-tuning: LoRA, whole blocks, the adapters, or one new block in the place of each run of removed blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/resources.h"
#include "shiftrt/training.h"

namespace shiftrt {

/// The settings that recover what a pruned and repaired model has lost: every kept block and the adapters learn from
/// the text; the best state on held-out text is kept (docs/training.md). Embeddings, final norm and head stay as they
/// are. With TrainingLoss::kBoth they learn from the original model's predictions too (Hinton et al. 2015). A model
/// without adapters needs FinetuneSettings::adapters off.
/// \param budget how long to train; none: one epoch
/// \return the settings, without a text
FinetuneSettings RecoverySettings(const TrainingBudget& budget = {});

/// The plan of a training.
struct TrainingOutline {
  std::string text = {};        ///< the text and how much of it is read
  std::string accounting = {};  ///< what became of its documents and tokens
  std::string trained = {};     ///< how many parameters are trained
  int64_t steps = 0;            ///< steps to do; 0: as many as a budget in seconds has time for
  double rate = 0;              ///< learning rate after the warm-up, of what the method trains
  double adapter_rate = 0;      ///< the same for adapters that are trained with it
  double head_rate = 0;         ///< the same for a head that is trained with it
};

/// Calls during a training, on the thread that called Finetune(). Each may be empty. An exception stops the training
/// and reaches the caller.
struct FinetuneObserver {
  std::function<void(const TrainingOutline& outline)> begin = {};                ///< before the first step
  std::function<void(const TrainingHistory& history, int64_t steps)> step = {};  ///< after steps and validations
  /// Receives what a user should know, as words that continue "shiftrt: ": that no checkpoint can be written, and why.
  std::function<void(const std::string& words)> warn = {};
  std::function<void()> poll = {};  ///< before each pass of a step or a validation, to look for signals
  Progress* answers = nullptr;      ///< receives reports while the original model answers prompts; null: none are made
};

/// The result of Finetune().
struct FinetunedModel {
  LanguageModel model;      ///< the trained model; shares the weights that were not trained
  TrainingOutline outline;  ///< what was done
  TrainingHistory history;  ///< how it went
  int64_t parameters = 0;   ///< trained parameters
  int64_t peak_bytes = 0;   ///< peak of the memory for gradients and activations
  int64_t kept_blocks = 0;  ///< blocks whose activations were kept for the backward pass
  /// The error of rounding the changes of blocks and head to the type of the weights, as a share of the changes, in the
  /// Frobenius norm; with LoRA and a trained head, the larger of the two shares.
  double rounding = 0;
};

/// Checks a training without a step of it. The text is read and tokenised.
/// \param model the model that Finetune() would get
/// \param settings the settings that it would get
/// \throws UsageError and Error as Finetune() does before its first step, except for the checkpoint and for answers of
///     own texts, which are not generated
void CheckFinetune(const LanguageModel& model, const FinetuneSettings& settings);

/// Trains a model further.
/// \param model a model as Open(), Repair() or Finetune() gives it
/// \param settings what is trained, on which text, and how
/// \param resources what the training may use of the machine
/// \param observer is called during the training
/// \return the trained model
/// \throws UsageError with the name of a field for a setting that makes no sense for the model; Error for text that is
///     missing or too short, for a checkpoint of another training, and for a loss that diverges; OutOfMemory;
///     Interrupted after RequestInterrupt()
FinetunedModel Finetune(const LanguageModel& model, const FinetuneSettings& settings, const Resources& resources = {},
                        const FinetuneObserver& observer = {});

}  // namespace shiftrt
