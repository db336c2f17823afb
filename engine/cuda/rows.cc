// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/rows.h"

#include <utility>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/rmsnorm.h"

namespace shiftrt {

namespace {

int64_t Size(const DeviceMatrix<const float>& x) { return x.rows * x.cols; }
int64_t Bytes(const DeviceMatrix<const float>& x) { return Size(x) * static_cast<int64_t>(sizeof(float)); }

}  // namespace

DeviceMemory StreamRows::Allocate(int64_t count) const {
  struct Held {
    std::shared_ptr<const StreamRows> owner;  // of the stream that the memory goes back to
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
  const MatrixView<const float> x = from.on_gpu();
  const MatrixView<float> y = to.on_gpu();
  if (to.dense()) return gpu::CopyOnDevice(stream(), y.data, x.data, Bytes(from));
  gpu::Widen(stream(), {x.data, DType::kFloat32}, x.rows, x.cols, y.data, y.stride);
}
void StreamRows::Add(DeviceMatrix<const float> from, DeviceMatrix<float> to) const {
  gpu::Add(stream(), to.on_gpu().data, from.on_gpu().data, Size(from), to.on_gpu().data);
}
void StreamRows::Subtract(DeviceMatrix<const float> from, DeviceMatrix<float> to) const {
  gpu::Subtract(stream(), to.on_gpu().data, from.on_gpu().data, Size(from), to.on_gpu().data);
}

}  // namespace shiftrt
