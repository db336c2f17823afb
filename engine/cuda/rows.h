// SPDX-License-Identifier: Apache-2.0
// A GPU's stream, and rows in that GPU's memory (engine/rows.h).
#pragma once

#include <memory>

#include "engine/rows.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

// Owns the stream in which everything happens to its rows. Rows of two streams do not meet, even on one GPU. Make it
// with std::make_shared: memory for rows keeps it alive.
class StreamRows : public RowsDevice, public std::enable_shared_from_this<StreamRows> {
 public:
  explicit StreamRows(int gpu) : stream_(gpu) {}
  gpu::Stream stream() const { return stream_.get(); }
  int gpu() const override { return stream().device; }
  // Dense rows in this GPU's memory.
  Rows Of(MatrixView<const float> rows) const {
    return {DeviceMatrix<const float>(rows, Device::kCuda), shared_from_this()};
  }
  DeviceMemory Allocate(int64_t count) const override;
  void CopyToHost(DeviceMatrix<const float> from, float* host) const override;
  void CopyFromHost(const float* host, DeviceMatrix<float> to) const override;
  void Copy(DeviceMatrix<const float> from, DeviceMatrix<float> to) const override;
  void Add(DeviceMatrix<const float> from, DeviceMatrix<float> to) const override;
  void Subtract(DeviceMatrix<const float> from, DeviceMatrix<float> to) const override;

 private:
  gpu::StreamOwner stream_;
};

}  // namespace shiftrt
