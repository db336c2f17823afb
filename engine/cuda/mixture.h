// SPDX-License-Identifier: Apache-2.0
// The mixture of experts of a block on a GPU. The experts are chosen there (kernels/cuda/experts.h). For few tokens,
// the products read the rows of the chosen experts as the choice in device memory says, so that the launches can be
// recorded. For more, the host groups the tokens by their experts, and each expert's product reads its matrices once.
#pragma once

#include "engine/cuda/state.h"
#include "kernels/cuda/experts.h"

namespace shiftrt {

class CudaMixture {
 public:
  explicit CudaMixture(CudaState& state) : s_(state) {}
  // Computes the outputs of the experts for the rows of x (tokens, hidden), which are those of the call, in the type of
  // the weights or, of one token, in float32.
  void Run(const DeviceMixture& w, gpu::ConstDeviceArray x);
  // to (tokens, hidden) = or += their weighted sum.
  void Sum(bool accumulate, MatrixView<float> to) const { gpu::SumExperts(s_.stream(), sum_, accumulate, to); }

 private:
  void Choose(const DeviceMixture& w, gpu::ConstDeviceArray x);
  void RunFew(const DeviceMixture& w, gpu::ConstDeviceArray x);
  void RunGrouped(const DeviceMixture& w, gpu::ConstDeviceArray x);
  void RunShared(const DeviceMixture& w, gpu::ConstDeviceArray x);
  // y (tokens, n) in its type = x (tokens, k) W'.
  void Multiply(const DeviceWeight& w, gpu::ConstDeviceArray x, int64_t n, int64_t k, gpu::DeviceArray y) const;

  bool clamped() const { return s_.spec().clamped.limit > 0; }

  CudaState& s_;
  const int32_t* chosen_ = nullptr;  // (tokens, active): the experts of the call's tokens
  gpu::ExpertSum sum_;
  gpu::DeviceBuffer<int32_t> numbers_;  // the tokens of slots and the slots of tokens, when they are grouped
};

}  // namespace shiftrt
