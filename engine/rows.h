// SPDX-License-Identifier: Apache-2.0
// Activations where a decoder has them: in host memory, or in a GPU's.
#pragma once

#include <memory>
#include <utility>

#include "runtime/tensor.h"

namespace shiftrt {

// What rows in a GPU's memory need of that GPU. All counts are of floats.
class RowsDevice {
 public:
  virtual ~RowsDevice() = default;
  virtual int gpu() const = 0;  // its index
  // Throws OutOfMemory. The memory goes back to the GPU with the last copy of the pointer.
  virtual std::shared_ptr<float> Allocate(int64_t count) const = 0;
  // Returns when the floats are there.
  virtual void CopyToHost(const float* from, int64_t count, float* to) const = 0;
  virtual void CopyFromHost(const float* from, int64_t count, float* to) const = 0;
  virtual void Copy(const float* from, int64_t count, float* to) const = 0;
  // to (rows, stride), of which the first `cols` columns = from (rows, cols).
  virtual void CopyColumns(MatrixView<const float> from, float* to, int64_t stride) const = 0;
  virtual void Add(const float* from, int64_t count, float* to) const = 0;       // to += from
  virtual void Subtract(const float* from, int64_t count, float* to) const = 0;  // to -= from
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
  Rows(MatrixView<const float> on_gpu, std::shared_ptr<const RowsDevice> device)
      : view_(on_gpu), device_(std::move(device)) {}

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
  MatrixView<const float> there() const { return view_; }

 private:
  MatrixView<const float> view_;
  std::shared_ptr<const RowsDevice> device_;
};

// A copy of rows, in the memory that has them. Moving it leaves the rows where they are.
class KeptRows {
 public:
  void Set(const Rows& rows);
  // Dense rows of the host, in the memory that has `alike`.
  void SetThere(MatrixView<const float> rows, const Rows& alike);
  // [left | right]; both have as many rows and lie in the same memory. Throws Error for others.
  void SetBeside(const Rows& left, const Rows& right);
  // Both take rows of the same shape in the same memory, and throw Error for others.
  void Add(const Rows& rows);
  void Subtract(const Rows& rows);
  // Valid until the next Set().
  Rows rows() const { return {{data_.get(), count_, hidden_}, device_}; }

 private:
  void CheckAlike(const Rows& rows) const;
  void Make(const std::shared_ptr<const RowsDevice>& device, int64_t count, int64_t hidden);

  std::shared_ptr<const RowsDevice> device_;
  std::shared_ptr<float> data_;  // goes back before the device does
  int64_t capacity_ = 0, count_ = 0, hidden_ = 0;
};

}  // namespace shiftrt
