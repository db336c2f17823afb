// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

// Float32 rows that a kernel writes. If `rounded` is not null, it writes them there too, dense and rounded to bfloat16,
// so that products that read them in 16 bits need no pass of their own that rounds them.
struct WrittenRows {
  MatrixView<float> rows;
  BFloat16* rounded = nullptr;  // (rows.rows, rows.cols)

  WrittenRows(MatrixView<float> rows, BFloat16* rounded = nullptr) : rows(rows), rounded(rounded) {}
};

}  // namespace shiftrt::gpu
