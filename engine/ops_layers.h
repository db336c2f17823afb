// SPDX-License-Identifier: Apache-2.0
// The stages of a plan over the operations of a device: the bodies that the layer loop calls, and the backward pass.
// Inference on the CPU and gradients on every device use it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/backend.h"
#include "engine/block_pass.h"

namespace shiftrt {

// Memory of a device that only grows. Growing loses what it held.
class Grown {
 public:
  // The first `count` floats, as (1, count).
  DeviceMatrix<float> Get(Ops& ops, int64_t count);
  int64_t bytes() const { return memory_.bytes(); }

 private:
  DeviceMemory memory_;
};

// The memory in which a forward pass stores what the backward pass reads, by the stage's index in the plan.
struct ActivationStore {
  struct Kept {
    DeviceMatrix<float> after;  // the stream after the stage, which may be where the stream before it is
    // KeptFloats() of them, as (1, count); empty: the backward pass computes them again.
    DeviceMatrix<float> activations = {};
  };
  std::vector<Kept> stages;
};

class OpsLayers : public Layers {
 public:
  // `tapped`: whether Update() is called.
  OpsLayers(std::unique_ptr<Ops> ops, std::shared_ptr<const Weights> weights, bool tapped);
  Ops& ops() const { return *ops_; }
  const Weights& weights() const { return *weights_; }

  // The parameters of the stages that run from here on, which are trained; they must stay valid. At first there are
  // none.
  void Train(const TrainedParameters& trained) { trained_ = &trained; }

  // Makes `call` the one whose stages the layer loop runs next.
  struct Pass {
    DeviceMatrix<float> stream;              // memory of the stream (tokens, hidden)
    size_t first = 0;                        // the index in the plan of the call's first stage
    bool dropout = false;                    // with that of the trained parameters
    const ActivationStore* store = nullptr;  // null: nothing is kept, and the stream stays where it is
  };
  void Begin(const LayerCall& call, const Pass& pass);
  // The backward pass of a stage of the call in progress. Adds to the gradients of the stage's parameters. `kept`: the
  // activations that the forward pass kept, or empty.
  void Backward(size_t index, const Stage& stage, const StreamGradient& stream, DeviceMatrix<float> kept);
  // Floats of the activations of a stage that a forward pass can keep; 0 for an adapter.
  int64_t KeptFloats(size_t index, const Stage& stage, int64_t tokens) const;
  // Memory that the next stage uses again.
  DeviceMatrix<float> Scratch(int64_t floats) { return scratch_.Get(*ops_, floats); }
  int64_t scratch_bytes() const { return scratch_.bytes(); }

  void BeginStage(size_t index, const Stage& stage) override;
  void Embed() override { ops_->Embed(h_); }
  void Resume(const Rows& residual) override;
  void Attention(const BlockStage&, int64_t slot) override { block_->Attention(h_, slot); }
  void Mlp(const BlockStage&) override { block_->Mlp(h_); }
  void Adapter(const AdapterStage&) override;
  Rows Stream() override { return ops_->AsRows(h_); }
  Rows Update(const BlockStage&, Halves halves) override;
  Rows Heads() override { return ops_->AsRows(block_->heads()); }
  Rows Activation() override { return ops_->AsRows(block_->activation()); }
  void Choose() override;

 private:
  TrainedStage StageAt(size_t index, const Stage& stage) const;
  StagePass PassOf(bool dropout) const { return {*ops_, *weights_, trained_->lora, dropout}; }
  // Gives a BlockPass or an AdapterPass its memory: activations in `kept`, if it is not empty, everything else in the
  // scratch.
  template <typename StageRun>
  void Place(StageRun& run, int64_t tokens, DeviceMatrix<float> kept = {});

  std::unique_ptr<Ops> ops_;
  std::shared_ptr<const Weights> weights_;
  const bool tapped_;
  const TrainedParameters* trained_;
  Grown scratch_;

  // The call in progress, and its stage.
  Pass call_;
  DeviceMatrix<float> h_;  // the stream
  std::optional<TrainedStage> stage_;
  std::optional<BlockPass> block_;
};

}  // namespace shiftrt
