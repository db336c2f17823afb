// SPDX-License-Identifier: Apache-2.0
// The gated delta network of a block (kernels/gated_delta.h), from its normed input to the input of its last
// projection: silu(z) * norm(heads), where queries, keys, values, z and the inputs of decay and beta are projections of
// the input.
#pragma once

#include "engine/mixer_pass.h"

namespace shiftrt {

class GatedDeltaPass final : public MixerPass {
 public:
  GatedDeltaPass(const StagePass& pass, const TrainedStage& stage);
  void LayOut(const Arenas& arenas, int64_t tokens, bool keeps) override;
  void LayOutGradients(Arena& scratch, int64_t tokens) override;
  void Forward(DeviceMatrix<const float> x, const LoraScratch& lora, int64_t slot) override;
  const DeviceMatrix<float>& out() const override { return out_; }
  int64_t width() const override { return shape_.values(); }
  int64_t slot() const override { return a_.slot; }
  bool Trained() const override;
  void Backward(DeviceMatrix<const float> x, DeviceMatrix<float> dout, const LoraScratch& lora,
                DeviceMatrix<float> dx) override;

 private:
  Ops& ops_;
  const GatedDeltaShape& shape_;
  ProjectionPass qkv_, z_, b_, a_proj_;
  DeltaOperands operands_;
  DeltaOperandGradients gradients_;
  Operand norm_;
  DeviceMatrix<float> dnorm_;

  DeltaActivations a_;
  DeviceMatrix<float> gate_;    // (tokens, values): z
  DeviceMatrix<float> normed_;  // (tokens, values); in the place of a_.out unless that is kept
  DeviceMatrix<float> out_;     // (tokens, values); in the place of the gate unless that is kept
  DeltaActivations d_;
  DeviceMatrix<float> dmixed_;
};

}  // namespace shiftrt
