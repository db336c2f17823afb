// SPDX-License-Identifier: Apache-2.0
// The bodies that the devices share.
#include "engine/ops.h"

#include <utility>

#include "engine/backend.h"

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

void Ops::Xielu(const XieluOperands&, DeviceMatrix<float>) { Fail("this device has no activation xIELU"); }
void Ops::XieluGradient(const XieluOperands&, DeviceMatrix<const float>, DeviceMatrix<float>, const XieluGradients&) {
  Fail("this device has no activation xIELU");
}
void Ops::ShortConvolution(const ConvolutionActivations&, const Operand&) {
  Fail("this device has no short convolutions");
}
void Ops::ShortConvolutionGradient(const ConvolutionActivations&, const Operand&, DeviceMatrix<const float>,
                                   DeviceMatrix<float>, DeviceMatrix<float>) {
  Fail("this device has no short convolutions");
}

void Ops::GatherSlots(const ExpertRouting& routing, DeviceMatrix<const float> from, DeviceMatrix<float> to) {
  Gather(routing.token_of, from, to);
}

std::unique_ptr<Ops> MakeOps(const Context& context, std::shared_ptr<const Weights> weights) {
  return context.device == Device::kCuda ? MakeCudaOps(context, std::move(weights))
                                         : MakeCpuOps(context, std::move(weights));
}

}  // namespace shiftrt
