// SPDX-License-Identifier: Apache-2.0
// Activations where a decoder has them: in host memory, or in a GPU's.
#pragma once

#include <memory>
#include <utility>

#include "engine/device_matrix.h"

namespace shiftrt {

// The operations of a GPU on rows in its memory.
class RowsDevice {
 public:
  virtual ~RowsDevice() = default;
  virtual int gpu() const = 0;                             // its index
  virtual DeviceMemory Allocate(int64_t count) const = 0;  // floats; throws OutOfMemory
  // The matrices have the same shape and are dense, except that the rows of Copy()'s `to` may be strided. The host's
  // are dense arrays; the copies to and from it return when the floats are there.
  virtual void CopyToHost(DeviceMatrix<const float> from, float* host) const = 0;
  virtual void CopyFromHost(const float* host, DeviceMatrix<float> to) const = 0;
  virtual void Copy(DeviceMatrix<const float> from, DeviceMatrix<float> to) const = 0;
  virtual void Add(DeviceMatrix<const float> from, DeviceMatrix<float> to) const = 0;       // to += from
  virtual void Subtract(DeviceMatrix<const float> from, DeviceMatrix<float> to) const = 0;  // to -= from
};

// Rows in host memory: a view of those that lay there, an owned copy of a GPU's.
class HostRows {
 public:
  explicit HostRows(MatrixView<const float> lying_there) : view_(lying_there) {}
  HostRows(Buffer<float> copy, int64_t rows, int64_t cols) : copy_(std::move(copy)), view_(copy_.data(), rows, cols) {}
  // Valid as long as this and the rows it was made of.
  MatrixView<const float> view() const& { return view_; }
  MatrixView<const float> view() && = delete;

 private:
  Buffer<float> copy_;
  MatrixView<const float> view_;
};

// A view of float32 rows (count, hidden) that somebody else owns. Rows in a GPU's memory are dense.
class Rows {
 public:
  Rows() = default;
  Rows(MatrixView<const float> on_host) : view_(on_host) {}
  Rows(MatrixView<float> on_host) : view_(on_host) {}
  // A null device stands for the host's memory.
  Rows(DeviceMatrix<const float> view, std::shared_ptr<const RowsDevice> device)
      : view_(view), device_(std::move(device)) {}

  int64_t count() const { return view_.rows; }
  int64_t hidden() const { return view_.cols; }
  bool on_host() const { return device_ == nullptr; }
  const std::shared_ptr<const RowsDevice>& device() const { return device_; }  // null: the host
  int gpu() const { return device_->gpu(); }                                   // not of rows on the host
  Rows Slice(int64_t begin, int64_t count) const { return {view_.Rows(begin, count), device_}; }

  // Costs nothing for rows on the host. For a GPU's it waits until the GPU has computed them and copies them.
  HostRows ToHost() const;
  // For what works on the host alone. Throws Error for rows of a GPU.
  MatrixView<const float> host() const;
  // In the memory that on_host() tells.
  DeviceMatrix<const float> there() const { return view_; }

 private:
  DeviceMatrix<const float> view_;
  std::shared_ptr<const RowsDevice> device_;
};

// A copy of rows, in the memory that has them. Moving it leaves the rows where they are.
class KeptRows {
 public:
  void Set(const Rows& rows);
  // Dense rows of the host, in the memory that has `alike`.
  void SetThere(MatrixView<const float> rows, const Rows& alike);
  // [left | right]; both have as many rows and lie in the same memory. Throws Error for others.
  void SetConcatenated(const Rows& left, const Rows& right);
  // Both take rows of the same shape in the same memory, and throw Error for others.
  void Add(const Rows& rows);
  void Subtract(const Rows& rows);
  // Valid until the next Set().
  Rows rows() const { return {there(), device_}; }

 private:
  DeviceMatrix<float> there() const { return memory_.matrix(count_, hidden_); }
  void CheckAlike(const Rows& rows) const;
  void Make(const std::shared_ptr<const RowsDevice>& device, int64_t count, int64_t hidden);

  std::shared_ptr<const RowsDevice> device_;
  DeviceMemory memory_;  // goes back before the device does
  int64_t count_ = 0, hidden_ = 0;
};

}  // namespace shiftrt
