// SPDX-License-Identifier: Apache-2.0
#include "engine/gated_delta_pass.h"

namespace shiftrt {

using B = BlockWeights;

namespace {

// None of the projections has a bias: the table has no member for one, and this one is empty in a gated delta network.
constexpr TensorView B::*kNoBias = &B::q_bias;

}  // namespace

GatedDeltaPass::GatedDeltaPass(const StagePass& pass, const TrainedStage& stage)
    : ops_(pass.ops),
      shape_(pass.weights.config.block.delta),
      qkv_(pass, stage, &B::delta_qkv, kNoBias),
      z_(pass, stage, &B::delta_z, kNoBias),
      b_(pass, stage, &B::delta_b, kNoBias),
      a_proj_(pass, stage, &B::delta_a, kNoBias),
      operands_{OperandOf(pass, stage, &B::delta_conv), OperandOf(pass, stage, &B::delta_a_log),
                OperandOf(pass, stage, &B::delta_dt_bias)},
      gradients_{GradientOf(stage, &B::delta_conv), GradientOf(stage, &B::delta_a_log),
                 GradientOf(stage, &B::delta_dt_bias)},
      norm_(OperandOf(pass, stage, &B::delta_norm)),
      dnorm_(GradientOf(stage, &B::delta_norm)) {}

void GatedDeltaPass::LayOut(const Arenas& arenas, int64_t tokens, bool keeps) {
  Arena& kept = arenas.kept;
  const int64_t values = shape_.values();
  a_.channels = kept.Get(tokens, shape_.channels());
  a_.mixed = kept.Get(tokens, shape_.channels());
  a_.a = kept.Get(tokens, shape_.value_heads);
  a_.b = kept.Get(tokens, shape_.value_heads);
  a_.out = kept.Get(tokens, values);
  gate_ = kept.Get(tokens, values);
  normed_ = keeps ? arenas.scratch.Get(tokens, values) : a_.out;
  out_ = keeps ? kept.Get(tokens, values) : gate_;
}

void GatedDeltaPass::LayOutGradients(Arena& scratch, int64_t tokens) {
  d_.channels = scratch.Get(tokens, shape_.channels());
  dmixed_ = scratch.Get(tokens, shape_.channels());
  d_.a = scratch.Get(tokens, shape_.value_heads);
  d_.b = scratch.Get(tokens, shape_.value_heads);
  d_.out = scratch.Get(tokens, shape_.values());
}

void GatedDeltaPass::Forward(DeviceMatrix<const float> x, const LoraScratch& lora, int64_t slot) {
  a_.slot = slot;
  qkv_.Forward(x, lora, a_.channels);
  z_.Forward(x, lora, gate_);
  b_.Forward(x, lora, a_.b);
  a_proj_.Forward(x, lora, a_.a);
  ops_.GatedDelta(a_, operands_);
  if (!normed_.StartsAt(a_.out)) ops_.Copy(a_.out, normed_);
  ops_.DeltaNorm(normed_, norm_);
  if (!out_.StartsAt(gate_)) ops_.Copy(gate_, out_);
  ops_.GatedUnit(out_, normed_);
}

bool GatedDeltaPass::Trained() const {
  const bool tensors = !gradients_.conv.empty() || !gradients_.a_log.empty() || !gradients_.dt_bias.empty();
  return qkv_.Trained() || z_.Trained() || b_.Trained() || a_proj_.Trained() || tensors || !dnorm_.empty();
}

void GatedDeltaPass::Backward(DeviceMatrix<const float> x, DeviceMatrix<float> dout, const LoraScratch& lora,
                              DeviceMatrix<float> dx) {
  ops_.Copy(a_.out, normed_);
  ops_.DeltaNorm(normed_, norm_);
  ops_.GatedUnitGradient(gate_, normed_, dout, d_.out);  // dout becomes the gradient of the gate
  ops_.DeltaNormGradient(a_.out, norm_, d_.out, d_.out, dnorm_);
  ops_.GatedDeltaGradient(a_, operands_, d_.out, dmixed_, d_, gradients_);
  qkv_.Backward(x, d_.channels, lora, false, dx);
  z_.Backward(x, dout, lora, true, dx);
  b_.Backward(x, d_.b, lora, true, dx);
  a_proj_.Backward(x, d_.a, lora, true, dx);
}

}  // namespace shiftrt
