// SPDX-License-Identifier: Apache-2.0
// Views of memory owned elsewhere, and Buffer and Matrix, which own memory.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include "runtime/dtype.h"

namespace shiftrt {

// A row-major matrix view: element (i, j) is data[i * stride + j]. Does not own.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t stride)
      : data(data), rows(rows), cols(cols), stride(stride) {}
  // A view of mutable elements is a view of const ones.
  template <typename U>
  requires(std::is_same_v<const U, T>) MatrixView(const MatrixView<U>& other)
      : MatrixView(other.data, other.rows, other.cols, other.stride) {}

  T* row(int64_t i) const { return data + i * stride; }
  T& operator()(int64_t i, int64_t j) const { return data[i * stride + j]; }
  MatrixView Rows(int64_t begin, int64_t count) const { return {row(begin), count, cols, stride}; }
  MatrixView Cols(int64_t begin, int64_t count) const { return {data + begin, rows, count, stride}; }
};

// A dense row-major tensor whose type is known at run time, as stored in a checkpoint. Does not own.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  int64_t bytes() const { return BytesOf(dtype, elements()); }
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t cols() const { return shape.size() < 2 ? 1 : shape[1]; }
  bool empty() const { return data == nullptr; }
};

// Returns memory for so many bytes (at least one), 64-byte aligned, which std::free frees. From 4 MiB on it is aligned
// to 2 MiB, and the system is asked for huge pages. Throws std::bad_alloc.
void* AllocateAligned(size_t bytes);

// Owns `size` elements in memory of AllocateAligned(). Not initialised.
template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : size_(size) {
    if (size > 0) data_.reset(static_cast<T*>(AllocateAligned(sizeof(T) * static_cast<size_t>(size))));
  }
  T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_.get()[i]; }
  std::span<T> span() const { return {data_.get(), static_cast<size_t>(size_)}; }
  // Grows to at least `size` elements. Growing loses the contents.
  void Reserve(int64_t size) {
    if (size > size_) *this = Buffer(size);
  }

 private:
  struct Free {
    void operator()(T* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  int64_t size_ = 0;
};

// A Buffer with the shape of a matrix.
template <typename T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols) : buffer_(rows * cols), rows_(rows), cols_(cols) {}
  static Matrix Zeros(int64_t rows, int64_t cols) {
    Matrix m(rows, cols);
    for (T& x : m.buffer_.span()) x = T{};
    return m;
  }
  Matrix Clone() const {
    Matrix m(rows_, cols_);
    for (int64_t i = 0; i < buffer_.size(); ++i) m.buffer_[i] = buffer_[i];
    return m;
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t size() const { return rows_ * cols_; }
  bool empty() const { return size() == 0; }
  T* data() const { return buffer_.data(); }
  T* row(int64_t i) const { return buffer_.data() + i * cols_; }
  T& operator()(int64_t i, int64_t j) const { return buffer_[i * cols_ + j]; }
  std::span<T> span() const { return buffer_.span(); }
  MatrixView<T> view() const { return {buffer_.data(), rows_, cols_}; }

 private:
  Buffer<T> buffer_;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
};

}  // namespace shiftrt
