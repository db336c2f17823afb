// SPDX-License-Identifier: Apache-2.0
// Float32 memory of a device, the host's or a GPU's, and views of it. Code that runs on the host cannot read an element
// through these types: it has to ask for the memory by the name of the place, and that is checked.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/check.h"
#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// A row-major matrix view in the memory of a device, which does not own it. A view of host memory converts to it, but
// it converts to nothing: host() and on_gpu() return a MatrixView and throw Error if the memory is elsewhere. An empty
// view is at home everywhere.
template <typename T>
class DeviceMatrix {
 public:
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements between two rows

  DeviceMatrix() = default;
  DeviceMatrix(MatrixView<T> on_host) : DeviceMatrix(on_host, Device::kCpu) {}  // NOLINT(google-explicit-constructor)
  // A view of mutable elements is a view of const ones.
  template <typename U>
  requires(std::is_same_v<const U, T>) DeviceMatrix(const MatrixView<U>& on_host)
      : DeviceMatrix(on_host, Device::kCpu) {}
  template <typename U>
  requires(std::is_same_v<const U, T>) DeviceMatrix(const DeviceMatrix<U>& other)
      : rows(other.rows), cols(other.cols), stride(other.stride), data_(other.data_), device_(other.device_) {}
  DeviceMatrix(MatrixView<T> view, Device device)
      : rows(view.rows), cols(view.cols), stride(view.stride), data_(view.data), device_(device) {}

  bool empty() const { return data_ == nullptr; }
  bool dense() const { return stride == cols; }
  Device device() const { return device_; }
  // Returns true if both begin at the same element.
  template <typename U>
  bool StartsAt(const DeviceMatrix<U>& other) const {
    return data_ == other.data_;
  }

  DeviceMatrix Rows(int64_t begin, int64_t count) const { return {View().Rows(begin, count), device_}; }
  DeviceMatrix Cols(int64_t begin, int64_t count) const { return {View().Cols(begin, count), device_}; }
  // A dense matrix within this dense one, from its element `offset` on.
  DeviceMatrix Part(int64_t offset, int64_t rows_of_part, int64_t cols_of_part) const {
    Check(dense() && offset >= 0 && offset + rows_of_part * cols_of_part <= rows * cols,
          "a matrix of ({}, {}) from element {} on does not fit memory of ({}, {})", rows_of_part, cols_of_part, offset,
          rows, cols);
    return {MatrixView<T>(data_ + offset, rows_of_part, cols_of_part), device_};
  }

  MatrixView<T> host() const { return Checked(Device::kCpu); }
  MatrixView<T> on_gpu() const { return Checked(Device::kCuda); }

 private:
  template <typename U>
  friend class DeviceMatrix;
  MatrixView<T> View() const { return {data_, rows, cols, stride}; }
  MatrixView<T> Checked(Device where) const {
    Check(empty() || device_ == where, "a matrix of ({}, {}) is in the memory of {}, expected that of {}", rows, cols,
          where == Device::kCpu ? "a GPU" : "the host", where == Device::kCpu ? "the host" : "a GPU");
    return View();
  }

  T* data_ = nullptr;
  Device device_ = Device::kCpu;
};

// Float32 memory of a device, which goes back with the last copy of this.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(std::shared_ptr<float> data, int64_t count, Device device)
      : data_(std::move(data)), count_(count), device_(device) {}
  // Not initialised.
  static DeviceMemory OnHost(int64_t count) {
    auto buffer = std::make_shared<Buffer<float>>(count);
    float* const data = buffer->data();
    return {{std::move(buffer), data}, count, Device::kCpu};
  }

  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(float)); }
  DeviceMatrix<float> all() const { return {MatrixView<float>(data_.get(), 1, count_), device_}; }  // (1, count)
  // A matrix from element `offset` on.
  DeviceMatrix<float> Part(int64_t offset, int64_t rows, int64_t cols) const { return all().Part(offset, rows, cols); }
  DeviceMatrix<float> matrix(int64_t rows, int64_t cols) const { return Part(0, rows, cols); }

 private:
  std::shared_ptr<float> data_;
  int64_t count_ = 0;
  Device device_ = Device::kCpu;
};

}  // namespace shiftrt
