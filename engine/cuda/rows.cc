// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/rows.h"

#include <utility>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/rmsnorm.h"

namespace shiftrt {

namespace {

constexpr int64_t Bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

}  // namespace

std::shared_ptr<float> StreamRows::Allocate(int64_t count) const {
  struct Held {
    std::shared_ptr<const StreamRows> owner;  // of the stream that the memory goes back to
    gpu::DeviceBuffer<float> buffer;
  };
  auto held = std::make_shared<Held>(Held{shared_from_this(), {stream(), count, "kept activations"}});
  float* const data = held->buffer.data();
  return {std::move(held), data};
}

void StreamRows::CopyToHost(const float* from, int64_t count, float* to) const {
  gpu::CopyToHost(stream(), to, from, Bytes(count));
}
void StreamRows::CopyFromHost(const float* from, int64_t count, float* to) const {
  gpu::CopyToDevice(stream(), to, from, Bytes(count));
}
void StreamRows::Copy(const float* from, int64_t count, float* to) const {
  gpu::CopyOnDevice(stream(), to, from, Bytes(count));
}
void StreamRows::CopyColumns(MatrixView<const float> from, float* to, int64_t stride) const {
  gpu::Widen(stream(), {from.data, DType::kFloat32}, from.rows, from.cols, to, stride);
}
void StreamRows::Add(const float* from, int64_t count, float* to) const { gpu::Add(stream(), to, from, count, to); }
void StreamRows::Subtract(const float* from, int64_t count, float* to) const {
  gpu::Subtract(stream(), to, from, count, to);
}

}  // namespace shiftrt
