// SPDX-License-Identifier: Apache-2.0
// Device arrays on the emulator, for tests.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "kernels/emulated/machine.h"

namespace shiftrt::emu {

// Owns `count` elements, which are NaN until written.
template <typename T>
class Array {
 public:
  explicit Array(int64_t count)
      : data_(static_cast<T*>(Allocate(count * static_cast<int64_t>(sizeof(T))))), size_(count) {}
  explicit Array(std::span<const T> values) : Array(static_cast<int64_t>(values.size())) {
    std::memcpy(data_, values.data(), values.size_bytes());
  }
  explicit Array(const std::vector<T>& values) : Array(std::span<const T>(values)) {}
  ~Array() { Free(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_[i]; }
  std::span<T> span() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  T* data_;
  int64_t size_;
};

}  // namespace shiftrt::emu
