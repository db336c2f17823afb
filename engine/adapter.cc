// SPDX-License-Identifier: Apache-2.0
#include "engine/adapter.h"

namespace shiftrt {

AdapterPass::AdapterPass(const StagePass& pass, const TrainedStage& stage)
    : ops_(pass.ops), lra_(*stage.stage.adapter().lra) {
  Take(stage.parameters.a, lra_.a, a_);
  Take(stage.parameters.p, lra_.p, p_);
  Take(stage.parameters.q, lra_.q, q_);
  Take(stage.parameters.b, lra_.b, b_);
}

void AdapterPass::LayOut(const Arenas& arenas, int64_t tokens) {
  inner_ = arenas.scratch.Get(tokens, lra_.rank());
  if (lra_.low_rank()) dinner_ = arenas.scratch.Get(tokens, lra_.rank());
}

void AdapterPass::Take(const Parameter& parameter, const shiftrt::Matrix<float>& stored, Matrix& matrix) {
  matrix.gradient = parameter.gradient;
  if (!parameter.value.empty()) {
    matrix.operand = parameter.value;
  } else if (!stored.empty()) {
    matrix.stored = {stored.data(), DType::kFloat32, {stored.rows(), stored.cols()}};
    matrix.operand = matrix.stored;
  }
}

// An adapter of rank 0 is a bias alone.
void AdapterPass::Forward(DeviceMatrix<float> h) {
  if (!lra_.low_rank()) {
    ops_.MatMulRight(h, a_.operand, false, inner_);
    ops_.AddTo(inner_, h);
  } else if (lra_.rank() > 0) {
    ops_.MatMulRight(h, p_.operand, false, inner_);
    ops_.MatMulRight(inner_, q_.operand, true, h);
  }
  ops_.AddRow(b_.operand, h);
}

void AdapterPass::Backward(const StreamGradient& stream) {
  const DeviceMatrix<float>& g = stream.gradient;
  if (b_.Trained()) ops_.BiasGradient(g, b_.gradient);
  if (!lra_.low_rank()) {
    if (a_.Trained()) ops_.MatMulWeightGradient(stream.input, g, a_.gradient);
    if (!stream.wanted) return;
    ops_.MatMul(g, a_.operand, {}, false, inner_);  // g A'
    return ops_.AddTo(inner_, g);
  }
  if (lra_.rank() == 0) return;
  if (q_.Trained()) {
    ops_.MatMulRight(stream.input, p_.operand, false, inner_);
    ops_.MatMulWeightGradient(inner_, g, q_.gradient);
  }
  if (!stream.wanted && !p_.Trained()) return;
  ops_.MatMul(g, q_.operand, {}, false, dinner_);  // g Q'
  if (p_.Trained()) ops_.MatMulWeightGradient(stream.input, dinner_, p_.gradient);
  if (stream.wanted) ops_.MatMul(dinner_, p_.operand, {}, true, g);
}

}  // namespace shiftrt
