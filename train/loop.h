// SPDX-License-Identifier: Apache-2.0
// The loop of training: steps of AdamW on batches of a text, validation, checkpoints.
#pragma once

#include <functional>

#include "engine/gradients.h"
#include "engine/ops.h"
#include "runtime/context.h"
#include "train/checkpoint.h"
#include "train/parameters.h"
#include "train/schedule.h"
#include "train/text.h"

namespace shiftrt {

// An objective is minimised. Its gradients go to the memory that its maker gave it.
class Objective {
 public:
  virtual ~Objective() = default;
  // Adds the gradient of `scale` times the batch's loss, which is returned unscaled. `pass` counts the passes of a
  // training, for random numbers.
  virtual LossSum Step(const TrainingBatch& batch, uint64_t pass, double scale) = 0;
  // The loss that validation compares, without dropout. `pass` is the number of this batch among those of a validation,
  // which has the same ones every time.
  virtual LossSum Validate(const TrainingBatch& batch, int64_t pass) = 0;
  // The weight of a batch's loss in the mean of Step()'s losses: its targets, or its tokens.
  virtual int64_t Weight(const TrainingBatch& batch) const { return batch.targets; }
  // Returns true if a training has failed whose loss was `first` and is `last`: here, one nat per token more. Both are
  // mean losses of steps, or both are losses of a validation.
  virtual bool Diverged(double first, double last) const { return last > first + 1; }
};

// The flat arrays in the memory of an engine's device.
struct TrainingArrays {
  TrainingArrays(Ops& ops, std::span<const float> initial);

  Ops& ops;
  int64_t count;
  DeviceMemory values, gradients, first, second;

  void Set(const TrainingState& state);
  // One of the arrays in host memory: as it is, or a copy in `copy` if it is a GPU's.
  std::span<const float> OnHost(const DeviceMemory& array, std::vector<float>& copy) const;
  // Frees all but the values.
  void KeepValuesOnly();
};

// Told of every step and of every validation; may throw, which stops the loop as an interruption does.
using TrainingObserver = std::function<void(const TrainingHistory& history, int64_t steps)>;

struct TrainingJob {
  const TrainingTexts& texts;
  const Parameters& parameters;
  const FinetuneSettings& settings;  // how it trains; what, and on which text, is said above
  Schedule schedule;                 // with a budget in seconds, steps and warm-up follow from the speed
  const CheckpointFile& checkpoint;
  TrainingObserver observer;
  const Context& context;  // the passes of a step and of a validation are shared out (runtime/shared_items.h)
  std::function<void(const std::string& words)> warn = {};  // told why there is no checkpoint; may be empty
  std::function<void()> poll = {};  // called before each pass; may throw, as `observer` may; may be empty
};

// Each pass of a step has a gradient of its own, and these are added in the order of the passes.
//
// Trains `arrays` in place, from the checkpoint's state where there is one. Writes the checkpoint every so often, when
// it is interrupted or another process fails, and at the end. With a budget in seconds, the first process's clock
// decides for all. Throws Error where loss or gradient is no number, and where the loss has diverged: the checkpoint
// before stands.
TrainingHistory Train(const TrainingJob& job, Objective& objective, TrainingArrays& arrays);

}  // namespace shiftrt
