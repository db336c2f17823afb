// SPDX-License-Identifier: Apache-2.0
// Products of some rows of x with rows of quantised blocks, for SimdBody. A blocked product transposes its operands
// while it packs them, which takes as long as its tiles if a panel of w meets few rows of x. Here a register tile sums
// the products of a few rows of both along their depth, so that nothing is transposed. Everything is in an anonymous
// namespace on purpose, as in simd_body_impl.h, which includes this header.
#pragma once

#include <algorithm>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/quantised_rows.h"
#include "kernels/cpu/simd_body.h"

namespace shiftrt {
namespace {

constexpr int kDotCols = 3;             // rows of w in a tile
constexpr int64_t kDotDepth = 512;      // the most elements of depth that are widened together
constexpr int64_t kDotDepthStep = 128;  // which is a multiple of this, unless they are the last ones
constexpr int64_t kDotBytes = int64_t{24}
                              << 10;  // of the rows of x that meet them, which stay in the first-level cache

// sums[i][j] (+)= the products of x[i] and w[j] along the depth, lane by lane, for kRows rows of x and kDotCols rows of
// w, which are kDotDepth elements apart. Of x, `rows` rows are there: the last one takes the place of those after it.
template <typename V, int kRows>
void DotTile(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t depth, bool accumulate,
             typename V::Reg* sums) {
  const float* row[kRows];
  typename V::Reg sum[kRows][kDotCols];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    row[i] = x + std::min<int64_t>(i, rows - 1) * x_stride;
#pragma GCC unroll 4
    for (int j = 0; j < kDotCols; ++j) sum[i][j] = accumulate ? sums[i * kDotCols + j] : V::Zero();
  }
  for (int64_t k = 0; k < depth; k += V::kWidth) {
    typename V::Reg weight[kDotCols];
#pragma GCC unroll 4
    for (int j = 0; j < kDotCols; ++j) weight[j] = V::Load(w + j * kDotDepth + k);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const typename V::Reg value = V::InRegister(V::Load(row[i] + k));
#pragma GCC unroll 4
      for (int j = 0; j < kDotCols; ++j) sum[i][j] = V::MultiplyAdd(value, weight[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kDotCols; ++j) sums[i * kDotCols + j] = sum[i][j];
}

template <typename V>
void QuantisedTiles(const float* x, int64_t x_stride, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
                    int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride) {
  constexpr int kRows = V::kDotRows;
  const auto* const blocks = static_cast<const std::byte*>(w);
  const int64_t row_bytes = BytesOf(dtype, k), x_bytes = m * static_cast<int64_t>(sizeof(float));
  const int64_t depth = std::clamp(kDotBytes / x_bytes / kDotDepthStep * kDotDepthStep, kDotDepthStep, kDotDepth);
  alignas(64) float wide[kDotCols * kDotDepth] = {};
  alignas(64) typename V::Reg sums[kMostTiledRows * kDotCols];
  for (int64_t first = begin; first < end; first += kDotCols) {
    const int64_t cols = std::min<int64_t>(kDotCols, end - first);
    for (int64_t at = 0; at < k; at += depth) {
      const int64_t count = std::min(depth, k - at);
      for (int64_t j = 0; j < cols; ++j) {
        const std::byte* const row = blocks + (first + j) * row_bytes;
        PrefetchAhead(row + BytesOf(dtype, at), BytesOf(dtype, count), kQuantisedAhead);
        Dequantise<V>(row, dtype, at, count, wide + j * kDotDepth);
      }
      for (int64_t i = 0; i < m; i += kRows) {
        const auto tile = m - i > kRows / 2 ? &DotTile<V, kRows> : &DotTile<V, kRows / 2>;
        tile(x + i * x_stride + at, x_stride, m - i, wide, count, at > 0, sums + i * kDotCols);
      }
    }
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        float* const out = y + i * y_stride + first + j;
        *out = (accumulate ? *out : 0.0f) + V::Sum(sums[i * kDotCols + j]) + (bias != nullptr ? bias[first + j] : 0.0f);
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt
