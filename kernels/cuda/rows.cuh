// SPDX-License-Identifier: Apache-2.0
// Rows of any width and stride, in pieces of eight elements.
#pragma once

#include "kernels/cuda/platform.cuh"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

// Up to eight elements of a row. With kWide there are eight, and their address is a multiple of 16 bytes.
template <bool kWide, typename T>
SHIFTRT_DEVICE void Read(const T* from, int count, float (&values)[8]) {
  if constexpr (kWide) {
    Load8(from, values);
  } else {
    for (int j = 0; j < 8; ++j) values[j] = j < count ? Widen(from[j]) : 0;
  }
}
template <bool kWide, typename T>
SHIFTRT_DEVICE void Write(T* to, int count, const float (&values)[8]) {
  if constexpr (kWide) {
    Store8(to, values);
  } else {
    for (int j = 0; j < 8; ++j)
      if (j < count) to[j] = Narrow<T>(values[j]);
  }
}

// Returns true if every piece of a row whose length is a multiple of 8 may be read and written as kWide.
template <typename T>
bool IsWide(const MatrixView<T>& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

}  // namespace shiftrt::gpu
