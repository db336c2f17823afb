// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/rows.h"

#include <utility>

#include "kernels/cuda/rowwise.h"

namespace shiftrt {

namespace {

int64_t Bytes(const DeviceMatrix<const float>& x) { return x.rows * x.cols * static_cast<int64_t>(sizeof(float)); }

}  // namespace

DeviceMemory StreamRows::Allocate(int64_t count) const {
  struct Held {
    std::shared_ptr<const StreamRows> owner;  // owns the stream that the memory goes back to
    gpu::DeviceBuffer<float> buffer;
  };
  auto held = std::make_shared<Held>(Held{shared_from_this(), {stream(), count, "kept activations"}});
  float* const data = held->buffer.data();
  return {{std::move(held), data}, count, Device::kCuda};
}

void StreamRows::CopyToHost(DeviceMatrix<const float> from, float* host) const {
  gpu::CopyToHost(stream(), host, from.on_gpu().data, Bytes(from));
}
void StreamRows::CopyFromHost(const float* host, DeviceMatrix<float> to) const {
  gpu::CopyToDevice(stream(), to.on_gpu().data, host, Bytes(to));
}
void StreamRows::Copy(DeviceMatrix<const float> from, DeviceMatrix<float> to) const {
  if (to.dense()) return gpu::CopyOnDevice(stream(), to.on_gpu().data, from.on_gpu().data, Bytes(from));
  gpu::CopyRows(stream(), from.on_gpu(), to.on_gpu());
}
void StreamRows::Add(DeviceMatrix<const float> from, DeviceMatrix<float> to) const {
  gpu::AddRows(stream(), from.on_gpu(), to.on_gpu());
}
void StreamRows::Subtract(DeviceMatrix<const float> from, DeviceMatrix<float> to) const {
  gpu::AddRows(stream(), from.on_gpu(), to.on_gpu(), nullptr, -1);
}

}  // namespace shiftrt
