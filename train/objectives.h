// SPDX-License-Identifier: Apache-2.0
// What can be minimised: the loss on text, with the original model as a teacher or without; and the squared error of
// the stream behind a run of removed blocks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "train/loop.h"

namespace shiftrt {

struct LossMix {
  float cross_entropy = 1;  // with the text
  float divergence = 0;     // KL(original model || this one), over the whole vocabulary

  std::string Name() const;  // as ParseLoss takes it
};
// "ce", "kl", or "both" with a half each. Throws UsageError for another word.
LossMix ParseLoss(const std::string& name);

// The loss of an engine's plan on text. Validation is always the cross entropy.
class LanguageObjective : public Objective {
 public:
  // `parameters`: where the engine finds values and adds gradients. `teacher` runs the original model over the same
  // weights, and is null where the mix has no divergence. Both outlive the object.
  LanguageObjective(GradientEngine& engine, TrainedParameters parameters, const LossMix& mix, Decoder* teacher);

  LossSum Step(const TrainingBatch& batch, uint64_t pass, double scale) override;
  LossSum Validate(const TrainingBatch& batch) override;

 private:
  GradientEngine& engine_;
  TrainedParameters parameters_;
  LossMix mix_;
  Decoder* teacher_;
};

// A run of removed layers, first .. last, and the stage of a plan that stands for it.
struct ReplacedRun {
  int64_t first = 0, last = 0;
  size_t stage = 0;
};

struct ReplacementPlan {
  DepthPlan plan;
  std::vector<ReplacedRun> runs;
};
// The plan with a copy of its first block, or of that block's MLP half, where each run of removed layers was, in place
// of the adapters there (Chen et al., "LLM-Streamline", 2024). Throws UsageError where no layer is removed, or where
// `weights` lack the removed layers.
ReplacementPlan WithReplacements(const Weights& weights, const DepthPlan& plan, Halves halves);

// The mean squared error per element of the stream behind each run, where its stage reads the original model's stream
// before the run; the mean over tokens and runs.
class ReplacementObjective : public Objective {
 public:
  // The engine runs the plan that `runs` belong to.
  ReplacementObjective(const Context& context, std::shared_ptr<const Weights> weights, GradientEngine& engine,
                       std::vector<ReplacedRun> runs);

  LossSum Step(const TrainingBatch& batch, uint64_t pass, double scale) override;
  LossSum Validate(const TrainingBatch& batch) override;
  int64_t Weight(const TrainingBatch& batch) const override { return batch.batch.size() * std::ssize(runs_); }
  bool Diverged(double first, double last) const override { return last > 4 * first; }

 private:
  // With the gradients of `scale` times the loss, where it is not zero.
  LossSum Pass(const Batch& batch, double scale);

  GradientEngine& engine_;
  std::vector<ReplacedRun> runs_;
  std::vector<KeptRows> before_, behind_;  // of the original model, per run
  std::unique_ptr<Decoder> original_;      // its taps fill them
  std::shared_ptr<float> output_, gradient_;
  int64_t capacity_ = 0;
};

}  // namespace shiftrt
