// SPDX-License-Identifier: Apache-2.0
// The bodies that the devices share.
#include "engine/ops.h"

#include <utility>

#include "runtime/check.h"

namespace shiftrt {

void Ops::MatMulEach(std::span<const Product> products) {
  for (const Product& product : products) MatMul(product.x, *product.w, {}, false, product.y);
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

[[noreturn]] void RefuseExperts() { Fail("mixtures of experts run on the CPU alone: use --device cpu"); }

}  // namespace

ExpertRouting Ops::RouteToExperts(DeviceMatrix<const float>, int64_t, bool) { RefuseExperts(); }
void Ops::SumOverExperts(const ExpertRouting&, bool, DeviceMatrix<const float>, DeviceMatrix<float>) {
  RefuseExperts();
}
void Ops::ExpertWeightGradient(const ExpertRouting&, DeviceMatrix<const float>, DeviceMatrix<float>, std::span<float>) {
  RefuseExperts();
}
void Ops::ScaleByExpertWeights(const ExpertRouting&, DeviceMatrix<float>) { RefuseExperts(); }
void Ops::RouteToExpertsGradient(const ExpertRouting&, bool, std::span<const float>, DeviceMatrix<float>) {
  RefuseExperts();
}

std::unique_ptr<Ops> MakeOps(const Context& context, std::shared_ptr<const Weights> weights) {
  return context.device == Device::kCuda ? MakeCudaOps(context, std::move(weights))
                                         : MakeCpuOps(context, std::move(weights));
}

}  // namespace shiftrt
