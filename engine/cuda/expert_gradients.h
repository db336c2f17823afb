// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts among the operations of gradients (engine/ops.h). The experts are chosen on the GPU; the host
// reads the choice, because it launches a product per expert, and what these operations read of it goes back.
#pragma once

#include <span>
#include <vector>

#include "engine/cuda/call.h"
#include "engine/cuda/scratch.h"
#include "kernels/experts.h"

namespace shiftrt {

// The contracts are those of Ops. Matrices are in the GPU's memory.
class ExpertGradientOps {
 public:
  explicit ExpertGradientOps(CudaCall& call) : call_(call) {}

  ExpertRouting Route(MatrixView<const float> logits, int64_t active, bool normalised);
  void Sum(const ExpertRouting& routing, bool weighted, MatrixView<const float> x, MatrixView<float> y);
  void WeightGradient(const ExpertRouting& routing, MatrixView<const float> activation, MatrixView<float> g,
                      std::span<float> dweights);
  // The weights of the slots, on the GPU until the next call.
  const float* WeightsOf(const ExpertRouting& routing) { return Upload(routing.weights, floats_); }
  void RouteGradient(const ExpertRouting& routing, bool normalised, std::span<const float> dweights,
                     MatrixView<float> logits);

 private:
  template <typename T>
  const T* Upload(const std::vector<T>& host, gpu::DeviceBuffer<T>& buffer) {
    T* const there = buffer.Reserve(call_.stream(), std::max<int64_t>(1, std::ssize(host)), kActivations);
    gpu::CopyToDevice(call_.stream(), there, host.data(), std::ssize(host) * static_cast<int64_t>(sizeof(T)));
    return there;
  }

  CudaCall& call_;
  gpu::DeviceBuffer<int32_t> numbers_;
  gpu::DeviceBuffer<float> floats_;
};

}  // namespace shiftrt
