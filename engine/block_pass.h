// SPDX-License-Identifier: Apache-2.0
// The steps of a block (engine/block.h) over the operations of a device, for inference on the CPU and for training on
// every device, and the backward pass.
#pragma once

#include <memory>

#include "engine/block.h"
#include "engine/mixer_pass.h"
#include "engine/mixture_pass.h"
#include "engine/projection.h"

namespace shiftrt {

class BlockPass final : private Block {
 public:
  BlockPass(const StagePass& pass, const TrainedStage& stage, Keeping keeping);
  // Takes its memory from the arenas, before anything else is called.
  void LayOut(const Arenas& arenas, int64_t tokens);

  // h += the update of the half. With kActivations, leaves what Backward() reads. `slot` is the attention's in the
  // call's cache.
  void Attention(DeviceMatrix<float> h, int64_t slot);
  void Mlp(DeviceMatrix<float> h);
  // Before Backward(), from the stream before the block: either computes all that it reads, and no more, or, where the
  // activations of the forward pass were kept, the normed inputs of the halves, which are cheap and are not kept.
  void Recompute(DeviceMatrix<const float> h);
  void NormInputs(DeviceMatrix<const float> h);
  void Backward(const StreamGradient& stream);

  // The input of the last projection of the half that ran last, (tokens, heads_dim) or (tokens, units), and with
  // kUpdates what the half added to the stream. A mixture of experts has no activation().
  const DeviceMatrix<float>& heads() const { return mixer_ ? mixer_->out() : gated_heads_; }
  const DeviceMatrix<float>& activation() const {
    Check(!mixture_.any(), "layer {}: a mixture of experts has no one activation that could be tapped", block_.layer);
    return activation_;
  }
  const DeviceMatrix<float>& attention_update() const { return attention_.added; }
  const DeviceMatrix<float>& mlp_update() const { return mlp_.added; }

 private:
  struct Norm {
    NormOperands operands;
    NormGradients gradients;
    bool Trained() const { return !gradients.weight.empty() || !gradients.bias.empty(); }
  };
  Norm NormOf(TensorView BlockWeights::*weight) const {
    return {{OperandOf(pass_, stage_, weight)}, {GradientOf(stage_, weight)}};
  }
  Norm NormOf(TensorView BlockWeights::*weight, TensorView BlockWeights::*bias) const {
    return {{OperandOf(pass_, stage_, weight), OperandOf(pass_, stage_, bias)},
            {GradientOf(stage_, weight), GradientOf(stage_, bias)}};
  }
  // A half; matrices are (tokens, hidden).
  struct Half {
    Norm norm, update_norm;
    ProjectionPass last;                          // o or down
    DeviceMatrix<float> x = {};                   // the normed input, which the halves of a parallel block may share
    DeviceMatrix<float> update = {}, added = {};  // the update before its norm, and as it is added to the stream
  };
  Half& Of(Halves half) { return half == Halves::kMlp ? mlp_ : attention_; }
  // The norm before a half.
  Norm InputNormOf(TensorView BlockWeights::*weight, TensorView BlockWeights::*bias) const;

  void LayOutMlp(const Arenas& arenas, int64_t tokens);
  bool keeps() const { return keeping_ == Keeping::kActivations; }
  bool parallel() const { return IsParallel(block_); }
  // LayOut of the part between the first and the last products of the mixer.
  void LayOutMixer(const Arenas& arenas, int64_t tokens);
  void LayOutMixerGradients(Arena& scratch, int64_t tokens);
  // The slot of the forward pass.
  int64_t slot() const { return mixer_ ? mixer_->slot() : heads_.slot; }
  void NormInput(const BlockStage&, Halves half) override;
  void Attend(const BlockStage&, int64_t slot) override;
  void Gate(const BlockStage&) override;
  void Finish(const BlockStage&, Halves half) override;
  // The norms of queries and keys, in place, if the block has them.
  void NormHeads();
  void NormHeadsBackward();
  // activation_ from gates_ and ups_.
  void Activate();
  // True if the last product of the half that runs is wanted: for the stream, or because the gradient of its norm reads
  // it.
  bool WantsUpdate() const { return !to_.empty() || config_.block.update_norms; }

  // Turns the gradient of what was added into that of the update before its norm, in dx_; without a norm they are the
  // same.
  DeviceMatrix<const float> UpdateGradient(const Half& half, DeviceMatrix<const float> gradient);
  // `stream.gradient` is that of what the half added. Leaves that of what the half's norm gave, in dmlp_x_ or dx_, if
  // the stream before the half or the norm needs it.
  void MlpBackward(const StreamGradient& stream);
  void MixtureBackward(const StreamGradient& stream);
  void AttentionBackward(const StreamGradient& stream);
  // From dattended_ the gradient of the attention's input, unless dx is empty.
  void HeadsBackward(DeviceMatrix<float> dx);
  // From dx, the gradient of what the half's norm gave. `stream.input` is the stream before the half. If wanted, the
  // gradient becomes that before the half.
  void NormBackward(const Norm& norm, DeviceMatrix<float> dx, const StreamGradient& stream);

  bool AttentionInnerTrained() const {
    return (mixer_ && mixer_->Trained()) || !dsinks_.empty() || q_.Trained() || k_.Trained() || v_.Trained() ||
           q_norm_.Trained() || k_norm_.Trained() || attention_.norm.Trained();
  }
  bool AttentionTrained() const {
    return AttentionInnerTrained() || attention_.last.Trained() || attention_.update_norm.Trained();
  }

  const StagePass pass_;
  const TrainedStage stage_;
  const Keeping keeping_;
  Ops& ops_;
  const ModelConfig& config_;
  const BlockStage& block_;
  const int64_t units_;  // the units of the stage's MLP

  ProjectionPass q_, k_, v_, gate_, up_;
  MixturePass mixture_;  // in the place of gate, up and down if the block has experts
  Norm q_norm_, k_norm_;
  XieluOperands xielu_;  // empty in a block with another activation
  XieluGradients dxielu_;
  DeviceMatrix<float> dsinks_;  // the gradient of the sinks; empty: they are not trained
  Half attention_, mlp_;

  // The half that runs reads the stream `from_`, and writes it with the update added to `to_`, which may be `from_`. An
  // empty `to_` stands for a stream that nobody reads.
  DeviceMatrix<const float> from_;
  DeviceMatrix<float> to_;

  std::unique_ptr<MixerPass> mixer_;  // null in a block with attention

  // Other activations.
  DeviceMatrix<float> both_, head_gates_;    // (tokens, 2 query_dim) and (tokens, query_dim), with attention_gate
  DeviceMatrix<float> gated_heads_;          // (tokens, query_dim); in the place of heads_.out unless that is kept
  AttentionActivations heads_;               // with the queries and keys that the scores are products of
  DeviceMatrix<float> raw_query_, raw_key_;  // as their norms read them; empty without these
  DeviceMatrix<float> mid_;                  // (tokens, hidden): the stream between the halves
  DeviceMatrix<float> gates_, ups_;          // (tokens, units); without gate, gates_ has the up projection's output
  DeviceMatrix<float> activation_;           // (tokens, units); in the place of the gates unless these are kept
  // Gradients. That of up takes the place of the activation.
  DeviceMatrix<float> dx_, dmlp_x_, dgates_, dattended_, dquery_, dkey_, dvalue_, dhead_gates_;
  LoraScratch lora_;
};

}  // namespace shiftrt
