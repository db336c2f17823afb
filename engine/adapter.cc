// SPDX-License-Identifier: Apache-2.0
#include "engine/adapter.h"

namespace shiftrt {

AdapterPass::AdapterPass(const StagePass& pass, const TrainedStage& stage)
    : ops_(pass.ops), lra_(*stage.stage.adapter().lra) {
  Take(stage.parameters.a, lra_.a, a_);
  Take(stage.parameters.p, lra_.p, p_);
  Take(stage.parameters.q, lra_.q, q_);
  Take(stage.parameters.b, lra_.b, b_);
  if (lra_.normed()) norm_ = {lra_.norm.data(), DType::kFloat32, {lra_.hidden()}};
}

void AdapterPass::LayOut(const Arenas& arenas, int64_t tokens) {
  inner_ = arenas.scratch.Get(tokens, lra_.rank());
  if (lra_.low_rank()) dinner_ = arenas.scratch.Get(tokens, lra_.rank());
  if (lra_.normed()) normed_ = arenas.scratch.Get(tokens, lra_.hidden());
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

DeviceMatrix<const float> AdapterPass::InputOf(DeviceMatrix<const float> h) {
  if (!lra_.normed()) return h;
  ops_.Norm(h, {norm_}, normed_);
  return normed_;
}

// An adapter of rank 0 is a bias alone.
void AdapterPass::Forward(DeviceMatrix<float> h) {
  if (!lra_.low_rank()) {
    ops_.MatMulRight(InputOf(h), a_.operand, false, inner_);
    ops_.AddTo(inner_, h);
  } else if (lra_.rank() > 0) {
    ops_.MatMulRight(InputOf(h), p_.operand, false, inner_);
    ops_.MatMulRight(inner_, q_.operand, true, h);
  }
  ops_.AddRow(b_.operand, h);
}

void AdapterPass::AddInputGradient(const StreamGradient& stream, DeviceMatrix<const float> dx) {
  if (!lra_.normed()) return ops_.AddTo(dx, stream.gradient);
  ops_.NormGradient(stream.input, {norm_}, dx, true, stream.gradient, {});
}

void AdapterPass::Backward(const StreamGradient& stream) {
  const DeviceMatrix<float>& g = stream.gradient;
  if (b_.Trained()) ops_.BiasGradient(g, b_.gradient);
  if (!lra_.low_rank()) {
    if (a_.Trained()) ops_.MatMulWeightGradient(InputOf(stream.input), g, a_.gradient);
    if (!stream.wanted) return;
    ops_.MatMul(g, a_.operand, {}, false, inner_);  // g A'
    return AddInputGradient(stream, inner_);
  }
  if (lra_.rank() == 0) return;
  const bool reads = q_.Trained() || p_.Trained();
  const DeviceMatrix<const float> x = reads ? InputOf(stream.input) : DeviceMatrix<const float>();
  if (q_.Trained()) {
    ops_.MatMulRight(x, p_.operand, false, inner_);
    ops_.MatMulWeightGradient(inner_, g, q_.gradient);
  }
  if (!stream.wanted && !p_.Trained()) return;
  ops_.MatMul(g, q_.operand, {}, false, dinner_);  // g Q'
  if (p_.Trained()) ops_.MatMulWeightGradient(x, dinner_, p_.gradient);
  if (!stream.wanted) return;
  if (!lra_.normed()) return ops_.MatMul(dinner_, p_.operand, {}, true, g);
  ops_.MatMul(dinner_, p_.operand, {}, false, normed_);  // the input is not read any more
  AddInputGradient(stream, normed_);
}

}  // namespace shiftrt
