// SPDX-License-Identifier: Apache-2.0
// The objectives: the loss on text, with the original model as a teacher or without; and the squared error of
// the stream after a run of removed blocks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "train/loop.h"

namespace shiftrt {

// The parts of a loss.
struct LossMix {
  float cross_entropy = 1;  // with the text
  float divergence = 0;     // KL(original model || this one), over the whole vocabulary
};

// The loss of an engine's plan on text. Validation measures the divergence where the mix has one, else the cross
// entropy. The teacher runs once over each batch of the validation: its streams are kept, as long as they take no more
// than 256 MiB together.
class LanguageObjective : public Objective {
 public:
  // `parameters`: where the engine finds values and adds gradients; both outlive the object. A loss with a divergence
  // needs the teacher's plan over the same weights. The teacher's pass also gives the stream after the leading blocks
  // that the engine's plan has in common with it and that are not trained, so that these run once.
  LanguageObjective(const Context& context, const std::shared_ptr<const Weights>& weights, GradientEngine& engine,
                    TrainedParameters parameters, TrainingLoss loss, const DepthPlan& teacher);
  // The number of these blocks; 0 without a teacher.
  size_t shared_blocks() const { return shared_; }

  LossSum Step(const TrainingBatch& batch, uint64_t pass, double scale) override;
  LossSum Validate(const TrainingBatch& batch, int64_t pass) override;

 private:
  // The teacher's streams over a batch.
  struct Streams {
    KeptRows shared;  // after the blocks that both models share, if there are some
    Rows shared_rows, last;
    KeptRows kept;  // the memory of `last`, where that outlives the teacher's next pass
  };

  // Runs the teacher, if there is one.
  void Teach(const Batch& batch, Streams& streams);
  LossKind KindOf(const LossMix& mix, const Streams& streams) const;
  PassStart From(const Streams& streams) const {
    return shared_ > 0 ? PassStart{shared_, &streams.shared_rows} : PassStart();
  }

  GradientEngine& engine_;
  TrainedParameters parameters_;
  LossMix mix_;
  size_t shared_ = 0;
  std::unique_ptr<Decoder> teacher_;  // its tap fills Streams::shared of the pass that runs
  Streams passing_;                   // the streams of the last pass that is not kept
  Streams* taught_ = nullptr;         // the streams of the pass that runs
  std::map<int64_t, Streams> validation_;
  int64_t kept_bytes_ = 0;  // the bytes of validation_
};

// A run of removed layers, first .. last, and the stage of a plan that is trained to stand for it, alone or with the
// stages from `begin` on. These read what the layer `input` of the original model reads.
struct ReplacedRun {
  int64_t first = 0, last = 0, input = 0;
  size_t begin = 0, stage = 0;
};

struct ReplacementPlan {
  DepthPlan plan;
  std::vector<ReplacedRun> runs;
};
// The plan with a copy of its first block, or of that block's MLP half, where each run of removed layers was, in place
// of the adapters there (Chen et al., "LLM-Streamline", 2024). With the correction kept: after the adapters and, where
// the block before the run has tensors of its own, with that block as part of what stands for the run; the output
// projections of the copy begin at zero. In the place of a copy, an MLP of other units (train/narrow_mlp.h) has the
// first units of the run and adds nothing yet. Throws UsageError where no layer is removed, where half a block runs,
// where `weights` lack the removed layers, and where a run has no correction that could be kept.
ReplacementPlan WithReplacements(const Weights& weights, const DepthPlan& plan, const Replacement& replacement,
                                 bool keep_correction);

// The mean squared error per element of the stream after each run, where the stages that stand for it read the
// original model's stream; the mean over tokens and runs.
class ReplacementObjective : public Objective {
 public:
  // The engine runs the plan that `runs` belong to.
  ReplacementObjective(const Context& context, std::shared_ptr<const Weights> weights, GradientEngine& engine,
                       std::vector<ReplacedRun> runs);

  LossSum Step(const TrainingBatch& batch, uint64_t pass, double scale) override;
  LossSum Validate(const TrainingBatch& batch, int64_t pass) override;
  int64_t Weight(const TrainingBatch& batch) const override { return batch.batch.size() * std::ssize(runs_); }
  // A replacement that begins without an error is not judged.
  bool Diverged(double first, double last) const override { return first > 0 && last > 4 * first; }

 private:
  // With the gradients of `scale` times the loss, where it is not zero.
  LossSum Pass(const Batch& batch, double scale);

  GradientEngine& engine_;
  std::vector<ReplacedRun> runs_;
  std::vector<KeptRows> before_, after_;  // streams of the original model, per run
  std::unique_ptr<Decoder> original_;     // its taps fill them
  DeviceMemory input_, output_, gradient_;
  int64_t capacity_ = 0;
};

}  // namespace shiftrt
