// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

// A matrix in device memory whose type is known at run time, as MatrixView is one of a known type.
struct ConstDeviceRows {
  ConstDeviceArray array;
  int64_t rows = 0, cols = 0, stride = 0;

  ConstDeviceRows() = default;
  ConstDeviceRows(ConstDeviceArray array, int64_t rows, int64_t cols) : ConstDeviceRows(array, rows, cols, cols) {}
  ConstDeviceRows(ConstDeviceArray array, int64_t rows, int64_t cols, int64_t stride)
      : array(array), rows(rows), cols(cols), stride(stride) {}
  ConstDeviceRows(const MatrixView<const float>& x)  // NOLINT(google-explicit-constructor): rows in float32
      : ConstDeviceRows({x.data, DType::kFloat32}, x.rows, x.cols, x.stride) {}
  ConstDeviceRows(const MatrixView<float>& x)  // NOLINT(google-explicit-constructor)
      : ConstDeviceRows(MatrixView<const float>(x)) {}
  // With the type of its elements.
  template <typename T>
  MatrixView<const T> Of() const {
    return {static_cast<const T*>(array.data), rows, cols, stride};
  }
};
struct DeviceRows {
  DeviceArray array;
  int64_t rows = 0, cols = 0, stride = 0;

  DeviceRows(DeviceArray array, int64_t rows, int64_t cols) : array(array), rows(rows), cols(cols), stride(cols) {}
  DeviceRows(const MatrixView<float>& x)  // NOLINT(google-explicit-constructor): rows in float32
      : array{x.data, DType::kFloat32}, rows(x.rows), cols(x.cols), stride(x.stride) {}
  template <typename T>
  MatrixView<T> Of() const {
    return {static_cast<T*>(array.data), rows, cols, stride};
  }
};

// Float32 rows that a kernel writes. If `rounded` is not null, it writes them there too, dense and rounded to bfloat16,
// so that products that read them in 16 bits need no pass of their own that rounds them.
struct WrittenRows {
  MatrixView<float> rows;
  BFloat16* rounded = nullptr;  // (rows.rows, rows.cols)

  WrittenRows(MatrixView<float> rows, BFloat16* rounded = nullptr) : rows(rows), rounded(rounded) {}
};

}  // namespace shiftrt::gpu
