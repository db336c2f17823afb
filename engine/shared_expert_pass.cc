// SPDX-License-Identifier: Apache-2.0
#include "engine/shared_expert_pass.h"

namespace shiftrt {

using B = BlockWeights;

namespace {

// None of the projections has a bias: the table has no member for one, and this one is empty beside a mixture.
constexpr TensorView B::*kNoBias = &B::up_bias;

}  // namespace

SharedExpertPass::SharedExpertPass(const StagePass& pass, const TrainedStage& stage)
    : ops_(pass.ops),
      units_(pass.weights.config.block.mixture.shared_units),
      gate_(pass, stage, &B::shared_gate, kNoBias),
      up_(pass, stage, &B::shared_up, kNoBias),
      down_(pass, stage, &B::shared_down, kNoBias),
      weight_(pass, stage, &B::shared_weight, kNoBias) {}

void SharedExpertPass::LayOut(const Arenas& arenas, int64_t tokens, bool keeps) {
  gates_ = arenas.kept.Get(tokens, units_);
  ups_ = arenas.kept.Get(tokens, units_);
  weights_ = arenas.kept.Get(tokens, 1);
  activation_ = keeps ? arenas.scratch.Get(tokens, units_) : gates_;
  if (!keeps) return;
  dgates_ = arenas.scratch.Get(tokens, units_);
  dweights_ = arenas.scratch.Get(tokens, 1);
}

void SharedExpertPass::Gate(DeviceMatrix<const float> x, const LoraScratch& lora) {
  gate_.Forward(x, lora, gates_);
  up_.Forward(x, lora, ups_);
  weight_.Forward(x, lora, weights_);
}

void SharedExpertPass::Activate() {
  if (!activation_.StartsAt(gates_)) ops_.Copy(gates_, activation_);
  ops_.GatedUnit(activation_, ups_);
  ops_.SigmoidGateRows(weights_, activation_);
}

void SharedExpertPass::Finish(const LoraScratch& lora, DeviceMatrix<float> y) {
  Activate();
  down_.Forward(activation_, lora, y);
}

bool SharedExpertPass::Trained() const {
  return gate_.Trained() || up_.Trained() || down_.Trained() || weight_.Trained();
}

void SharedExpertPass::OutputBackward(DeviceMatrix<const float> dy, const LoraScratch& lora) {
  Activate();
  down_.Backward(activation_, dy, lora, false, dgates_);
  ops_.SigmoidGateRowsGradient(weights_, activation_, dgates_, dweights_);
}

void SharedExpertPass::InputBackward(DeviceMatrix<const float> x, const LoraScratch& lora, DeviceMatrix<float> dx) {
  const DeviceMatrix<float> dups = activation_;
  ops_.GatedUnitGradient(gates_, ups_, dgates_, dups);
  gate_.Backward(x, dgates_, lora, true, dx);
  up_.Backward(x, dups, lora, true, dx);
  weight_.Backward(x, dweights_, lora, true, dx);
}

}  // namespace shiftrt
