// SPDX-License-Identifier: Apache-2.0
// GPU memory that the calls of one object use again and again.
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

inline constexpr const char* kActivations = "the activations";

// An array that grows to what the largest call needs, in float32 or in the weights' type.
class Scratch {
 public:
  float* Floats(gpu::Stream stream, int64_t count) {
    return static_cast<float*>(Get(stream, count, DType::kFloat32).data);
  }
  gpu::DeviceArray Get(gpu::Stream stream, int64_t count, DType dtype) {
    const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
    return {buffer_.Reserve(stream, bytes, kActivations), dtype};
  }
  int64_t bytes() const { return buffer_.size(); }
  void Release() { buffer_ = {}; }

 private:
  gpu::DeviceBuffer<std::byte> buffer_;
};

}  // namespace shiftrt
