// SPDX-License-Identifier: Apache-2.0
// Gradients of a plan's parameters and of its residual stream. Layer selection and fine-tuning both read them.
//
// A backward pass goes through the stages from the last to the first. Of the forward pass the stream before each
// stage that is passed backwards is kept, and the activations of as many stages as KeepActivations has memory for;
// those of the others are computed again when their turn comes (Chen et al. 2016). docs/training.md has the memory as a
// formula.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/parameters.h"

namespace shiftrt {

class Ops;

// Which tokens of a batch are predicted, and how much each counts: weights[t] is that of token t as a target, 0 for the
// first token of a sequence. Empty: 1 for every token but the first of a sequence.
using TargetWeights = std::vector<float>;

// The sum of weight * loss in nats over the targets, and the sum of the weights.
struct LossSum {
  double loss = 0, weight = 0;
  LossSum& operator+=(const LossSum& other) {
    loss += other.loss;
    weight += other.weight;
    return *this;
  }
};

// Cross entropy with the text, and divergence from the original model's predictions: KL(teacher || student).
struct LossKind {
  float cross_entropy = 1;
  float divergence = 0;           // needs the teacher's stream
  const Rows* teacher = nullptr;  // its residual stream after the last stage, (tokens, hidden), before the final norm
};

// A pass begins before the stage `stage` of the plan, with the stream `rows` (tokens, hidden) of another pass that ran
// the same stages up to there. Without rows it begins with the embeddings.
struct PassStart {
  size_t stage = 0;
  const Rows* rows = nullptr;
};

// Throws Error where the device has no gradients for weights of this type: for float16 on a GPU.
void CheckGradientType(const Context& context, const Weights& weights);

// The engine for the gradients of one plan. For one thread at a time.
class GradientEngine {
 public:
  // Throws Error where the device has no gradients.
  GradientEngine(const Context& context, const std::shared_ptr<const Weights>& weights, DepthPlan plan);
  ~GradientEngine();

  const DepthPlan& plan() const;
  // The operations of its device, for callers that work on parameters and gradients where they are (engine/ops.h).
  Ops& ops();

  // Float32 memory of the engine's device, zeroed. Lives as long as the pointer.
  DeviceMemory Allocate(int64_t count);

  // In the calls of Step that follow, keeps the activations of as many stages, from the last one down, as fit into so
  // many bytes; none at first. The results are the same bits.
  void KeepActivations(int64_t bytes);

  // The parameters of the passes that follow. All views must stay valid, and a trained tensor's rows lie one after
  // another. Throws Error for parameters of another shape than the model's, or of what the plan does not run.
  void Set(TrainedParameters parameters);

  // Loss and gradients of one batch, both ways through all stages: adds the gradient of `scale` times the loss to every
  // parameter that has one, and returns the loss unscaled. No sequence of the batch may have a parent. Nothing below
  // the lowest stage with a gradient is passed backwards, and the pass may begin at that stage at the latest. Throws
  // Error for a loss that is not finite because of the model: it names the first stage after which the stream is not,
  // and the stored tensor that is not. Where only what is trained can be at fault, such a loss is returned, and no
  // gradient is added.
  LossSum Step(const Batch& batch, const TargetWeights& weights, double scale, const LossKind& kind = {},
               const PassStart& from = {});
  // The loss alone, without dropout.
  LossSum Loss(const Batch& batch, const TargetWeights& weights, const LossKind& kind = {}, const PassStart& from = {});

  // A step in parts, for criteria that process the stages in another order, or that stop on the way.
  //
  // The caller keeps the residual streams, (tokens, hidden) each. Forward runs stage `stage` in place on the stream
  // before it, with the bits of Decoder where nothing is trained.
  void Forward(size_t stage, const Batch& batch, DeviceMatrix<float> h);
  // `input` is the stream before the stage. `gradient` holds that of the stream after it and is replaced by that of
  // the stream before it. Adds to the gradients of the stage's parameters. With `stream_gradient` false, only these
  // are computed, and `gradient` is left undefined.
  void Backward(size_t stage, const Batch& batch, DeviceMatrix<const float> input, DeviceMatrix<float> gradient,
                bool stream_gradient = true);
  // Final norm, head and loss of the stream after the last stage: writes `scale` times the gradient of the loss to
  // `gradient` (tokens, hidden) unless that is empty, and adds to those of head and final norm.
  LossSum Head(const Batch& batch, const TargetWeights& weights, double scale, DeviceMatrix<const float> stream,
               DeviceMatrix<float> gradient, const LossKind& kind = {});

  // Blocks whose activations the last call of Step kept.
  int64_t KeptBlocks() const;
  // The most bytes that its own buffers have taken so far.
  int64_t PeakBytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt
