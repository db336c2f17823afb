// SPDX-License-Identifier: Apache-2.0
// A block, or one half of it, both ways, written once over the operations of a device: inference on the CPU and
// gradients on every device run it. Each half adds an update to the stream: update = [norm](projections(norm(h))). The
// halves of a parallel block (BlockSpec::parallel) that run together read the same h.
#pragma once

#include "engine/projection.h"

namespace shiftrt {

class BlockPass {
 public:
  BlockPass(const StagePass& pass, const TrainedStage& stage, Keeping keeping);
  // Takes its memory from the arenas, before anything else is called.
  void LayOut(const Arenas& arenas, int64_t tokens);

  // h += the update of the half. With kActivations, leaves what Backward() reads. `slot` is the attention's in the
  // call's cache.
  void Attention(DeviceMatrix<float> h, int64_t slot);
  void Mlp(DeviceMatrix<float> h);
  // Computes what Backward() reads, from the stream before the block, and no more.
  void Recompute(DeviceMatrix<const float> h);
  void Backward(const StreamGradient& stream);

  // The input of the last projection of the half that ran last, (tokens, query_dim) or (tokens, intermediate), and with
  // kUpdates what the half added to the stream.
  const DeviceMatrix<float>& heads() const { return attention_.out; }
  const DeviceMatrix<float>& activation() const { return activation_; }
  const DeviceMatrix<float>& attention_update() const { return attention_added_; }
  const DeviceMatrix<float>& mlp_update() const { return mlp_added_; }

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
  // The norm in front of a half.
  Norm InputNormOf(TensorView BlockWeights::*weight, TensorView BlockWeights::*bias) const;

  bool keeps() const { return keeping_ == Keeping::kActivations; }
  // True if both halves run and read the stream before the block.
  bool parallel() const { return config_.block.parallel && block_.halves == Halves::kBoth; }
  // The halves. They read the stream `from`, and write it with the update added to `to`, which may be `from`. An empty
  // `to` stands for a stream that nobody reads: what only it depends on is not computed.
  void AttentionHalf(DeviceMatrix<const float> from, DeviceMatrix<float> to);
  void MlpHalf(DeviceMatrix<const float> from, DeviceMatrix<float> to);
  // The end of a half, from x, the input of its last projection. The update is left in `update` before its norm, and
  // in `added` as it is added to the stream.
  struct End {
    const Projection& last;
    const Norm& norm;
    DeviceMatrix<float> update, added;
  };
  void Finish(const End& end, DeviceMatrix<const float> x, DeviceMatrix<const float> from, DeviceMatrix<float> to);
  // activation_ from gates_ and ups_.
  void Activate();

  // Turns the gradient of what was added into that of the update before its norm, in dx_; without a norm they are the
  // same.
  DeviceMatrix<const float> UpdateGradient(const Norm& norm, DeviceMatrix<const float> update,
                                           DeviceMatrix<const float> gradient);
  // `stream.gradient` is that of what the half added. Leaves that of what the half's norm gave, in dmlp_x_ or dx_, if
  // the stream before the half or the norm needs it.
  void MlpBackward(const StreamGradient& stream);
  void AttentionBackward(const StreamGradient& stream);
  // From dx, the gradient of what the half's norm gave. `stream.input` is the stream before the half. If wanted, the
  // gradient becomes that before the half.
  void NormBackward(const Norm& norm, DeviceMatrix<float> dx, const StreamGradient& stream);

  bool AttentionInnerTrained() const {
    return q_.Trained() || k_.Trained() || v_.Trained() || q_norm_.Trained() || k_norm_.Trained() ||
           attention_norm_.Trained();
  }
  bool AttentionTrained() const { return AttentionInnerTrained() || o_.Trained() || attention_update_norm_.Trained(); }

  const StagePass pass_;
  const TrainedStage stage_;
  const Keeping keeping_;
  Ops& ops_;
  const ModelConfig& config_;
  const BlockStage& block_;

  Projection q_, k_, v_, o_, gate_, up_, down_;
  Norm attention_norm_, q_norm_, k_norm_, attention_update_norm_, mlp_norm_, mlp_update_norm_;

  // Activations; (tokens, hidden) unless they say otherwise.
  DeviceMatrix<float> x_;                    // the normed input of the attention
  AttentionActivations attention_;           // with the rotated queries and keys
  DeviceMatrix<float> raw_query_, raw_key_;  // before their norms; empty without these
  DeviceMatrix<float> attention_update_, attention_added_;
  DeviceMatrix<float> mid_;          // the stream between the halves
  DeviceMatrix<float> mlp_x_;        // the normed input of the MLP
  DeviceMatrix<float> gates_, ups_;  // (tokens, intermediate); without gate, gates_ has the up projection's output
  DeviceMatrix<float> activation_;   // (tokens, intermediate); in the place of the gates unless these are kept
  DeviceMatrix<float> mlp_update_, mlp_added_;
  // Gradients. That of up takes the place of the activation.
  DeviceMatrix<float> dx_, dmlp_x_, dgates_, dattended_, dquery_, dkey_, dvalue_;
  LoraScratch lora_;
};

}  // namespace shiftrt
