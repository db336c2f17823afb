// SPDX-License-Identifier: Apache-2.0
// The bodies that the devices share.
#include "engine/ops.h"

#include <utility>

#include "engine/backend.h"
#include "runtime/check.h"

namespace shiftrt {

void Ops::MatMulEach(std::span<const Product> products) {
  for (const Product& product : products) MatMul(product.x, *product.w, *product.bias, false, product.y);
}

void Ops::MatMulLowRank(DeviceMatrix<const float> x, const Operand& w, const Operand& bias, const LowRankTerm& low,
                        DeviceMatrix<float> y) {
  MatMul(x, w, bias, false, y);
  MatMul(x, low.a, {}, false, low.inner);
  Scale(low.scale, low.inner);
  MatMul(low.inner, low.b, {}, true, y);
}

void Ops::MatMulInputGradientLowRank(DeviceMatrix<const float> dy, const Operand& w, const LowRankTerm& low,
                                     bool accumulate, DeviceMatrix<float> dx) {
  MatMulInputGradient(dy, w, accumulate, dx);
  MatMulInputGradient(dy, low.b, false, low.inner);
  Scale(low.scale, low.inner);
  MatMulInputGradient(low.inner, low.a, true, dx);
}

namespace {

[[noreturn]] void FailGatedDelta() {
  Fail("gated delta networks and gates of attention are trained on the CPU alone: use --device cpu");
}

[[noreturn]] void RefuseExperts() { Fail("mixtures of experts are trained on the CPU alone: use --device cpu"); }

}  // namespace

void Ops::AttentionSinkGradient(const AttentionActivations&, DeviceMatrix<const float>, DeviceMatrix<float>) {
  Fail("this device has no attention sinks");
}
void Ops::Xielu(const XieluOperands&, DeviceMatrix<float>) { Fail("this device has no activation xIELU"); }
void Ops::XieluGradient(const XieluOperands&, DeviceMatrix<const float>, DeviceMatrix<float>, const XieluGradients&) {
  Fail("this device has no activation xIELU");
}
void Ops::GatedDelta(const DeltaActivations&, const DeltaOperands&) { FailGatedDelta(); }
void Ops::GatedDeltaGradient(const DeltaActivations&, const DeltaOperands&, DeviceMatrix<const float>,
                             DeviceMatrix<float>, const DeltaActivations&, const DeltaOperandGradients&) {
  FailGatedDelta();
}
void Ops::ShortConvolution(const ConvolutionActivations&, const Operand&) {
  Fail("this device has no short convolutions");
}
void Ops::ShortConvolutionGradient(const ConvolutionActivations&, const Operand&, DeviceMatrix<const float>,
                                   DeviceMatrix<float>, DeviceMatrix<float>) {
  Fail("this device has no short convolutions");
}
void Ops::DeltaNorm(DeviceMatrix<float>, const Operand&) { FailGatedDelta(); }
void Ops::DeltaNormGradient(DeviceMatrix<const float>, const Operand&, DeviceMatrix<const float>, DeviceMatrix<float>,
                            DeviceMatrix<float>) {
  FailGatedDelta();
}
void Ops::SplitGates(DeviceMatrix<const float>, DeviceMatrix<float>, DeviceMatrix<float>) { FailGatedDelta(); }
void Ops::JoinGates(DeviceMatrix<const float>, DeviceMatrix<const float>, DeviceMatrix<float>) { FailGatedDelta(); }
void Ops::SigmoidGate(DeviceMatrix<const float>, DeviceMatrix<float>) { FailGatedDelta(); }
void Ops::SigmoidGateGradient(DeviceMatrix<const float>, DeviceMatrix<const float>, DeviceMatrix<float>,
                              DeviceMatrix<float>) {
  FailGatedDelta();
}

ExpertRouting Ops::RouteToExperts(DeviceMatrix<const float>, int64_t, bool) { RefuseExperts(); }
void Ops::SumOverExperts(const ExpertRouting&, bool, DeviceMatrix<const float>, DeviceMatrix<float>) {
  RefuseExperts();
}
void Ops::ExpertWeightGradient(const ExpertRouting&, DeviceMatrix<const float>, DeviceMatrix<float>, std::span<float>) {
  RefuseExperts();
}
void Ops::ExpertBiasWeightGradient(const TensorView&, DeviceMatrix<const float>, std::span<float>) { RefuseExperts(); }
void Ops::ScaleByExpertWeights(const ExpertRouting&, DeviceMatrix<float>) { RefuseExperts(); }
void Ops::SigmoidGateRows(DeviceMatrix<const float>, DeviceMatrix<float>) { RefuseExperts(); }
void Ops::SigmoidGateRowsGradient(DeviceMatrix<const float>, DeviceMatrix<const float>, DeviceMatrix<float>,
                                  DeviceMatrix<float>) {
  RefuseExperts();
}
void Ops::RouteToExpertsGradient(const ExpertRouting&, bool, std::span<const float>, DeviceMatrix<float>) {
  RefuseExperts();
}

std::unique_ptr<Ops> MakeOps(const Context& context, std::shared_ptr<const Weights> weights) {
  return context.device == Device::kCuda ? MakeCudaOps(context, std::move(weights))
                                         : MakeCpuOps(context, std::move(weights));
}

}  // namespace shiftrt
