// SPDX-License-Identifier: Apache-2.0
// Loops over the elements of a matrix view that are divided among threads, however few rows it has.
#pragma once

#include <algorithm>

#include "runtime/parallel.h"
#include "runtime/tensor.h"

namespace shiftrt {

// Calls row_part(row, first column, columns) for pieces that together cover `x`, on several threads at once.
template <typename Visit>
void ForEachRowPart(const Context& context, MatrixView<const float> x, const Visit& row_part) {
  ParallelFor(context, x.rows * x.cols, 4096, [&](int64_t begin, int64_t end) {
    int64_t at = begin;
    while (at < end) {  // row by row, as views may be strided
      const int64_t row = at / x.cols, col = at % x.cols, stop = std::min(x.cols, col + end - at);
      row_part(row, col, stop - col);
      at += stop - col;
    }
  });
}

}  // namespace shiftrt
