// SPDX-License-Identifier: Apache-2.0
// Products of few rows of x with rows of weights that are read where they are stored, for SimdBody. Everything is in an
// anonymous namespace on purpose, as in simd_body_impl.h, which includes this header.
#pragma once

#include <type_traits>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/quantised_rows.h"
#include "kernels/cpu/simd_body.h"

namespace shiftrt {
namespace {

template <typename T>
float WidenOne(T value) {
  return static_cast<float>(value);
}

// Calls visit with a pointer to the elements: const float* unless they are stored in 16 bits.
template <typename Visit>
void WithElements(const void* data, DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kBFloat16: return visit(static_cast<const BFloat16*>(data));
    case DType::kFloat16: return visit(static_cast<const Float16*>(data));
    default: return visit(static_cast<const float*>(data));
  }
}

// The prefetch distance of a stream of weights: small enough to stay within the next row, and large enough to cover the
// latency of main memory.
constexpr int64_t kPrefetchBytes = 1024;
constexpr int64_t kRowsTogether = 16;  // rows of quantised weights that meet all rows of x

// Dot products of one row of w with M rows of x. Four accumulators per row of x hide the latency of the additions.
template <typename V, typename T, int M>
void RowDots(const float* x, int64_t x_stride, const T* w, int64_t k, float* out) {
  constexpr int kUnroll = M == 1 ? 4 : 2;
  typename V::Reg sum[M][kUnroll];
  for (int i = 0; i < M; ++i)
    for (int u = 0; u < kUnroll; ++u) sum[i][u] = V::Zero();
  int64_t at = 0;
  for (; at + kUnroll * V::kWidth <= k; at += kUnroll * V::kWidth) {
    constexpr int64_t kStepBytes = kUnroll * V::kWidth * static_cast<int64_t>(sizeof(T));
    PrefetchAhead(w + at, kStepBytes, kPrefetchBytes);
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) {
      const typename V::Reg weight = V::Load(w + at + u * V::kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i)
        sum[i][u] = V::MultiplyAdd(weight, V::Load(x + i * x_stride + at + u * V::kWidth), sum[i][u]);
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int u = 1; u < kUnroll; ++u) sum[i][0] = V::Add(sum[i][0], sum[i][u]);
    float total = V::Sum(sum[i][0]);
    for (int64_t j = at; j < k; ++j) total += WidenOne(w[j]) * x[i * x_stride + j];
    out[i] = total;
  }
}

// Writes the products of row j of the weights with M rows of x where SimdBody::rows says.
template <int M>
void StoreDots(const float (&dots)[M], int64_t j, const float* bias, bool accumulate, float* y, int64_t y_stride) {
  for (int i = 0; i < M; ++i) {
    float* out = y + i * y_stride + j;
    *out = (accumulate ? *out : 0.0f) + dots[i] + (bias != nullptr ? bias[j] : 0.0f);
  }
}

// Calls visit(std::integral_constant<int, M>()) with the smaller of m and 4 as M.
template <typename Visit>
void WithRowCount(int64_t m, const Visit& visit) {
  switch (m) {
    case 1: return visit(std::integral_constant<int, 1>());
    case 2: return visit(std::integral_constant<int, 2>());
    case 3: return visit(std::integral_constant<int, 3>());
    default: return visit(std::integral_constant<int, 4>());
  }
}

// The dot products of quantised_rows.h.
struct DotsOfGroups {
  template <typename Format, int R, int M>
  static void Run(const std::byte* prepared, int64_t prepared_bytes, const std::byte* w, int64_t row_bytes, int64_t k,
                  float (&out)[R][M]) {
    QuantisedDots<Format>(prepared, prepared_bytes, w, row_bytes, k, out);
  }
};

template <typename Dots>
void QuantisedRows(const std::byte* prepared, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
                   int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride) {
  const auto* const blocks = static_cast<const std::byte*>(w);
  const int64_t row_bytes = BytesOf(dtype, k), prepared_bytes = PreparedBytes(k);
  // Some rows of weights, which stay in the first-level cache, meet all rows of x, four at a time.
  for (int64_t first = begin; first < end; first += kRowsTogether) {
    const int64_t stop = first + kRowsTogether < end ? first + kRowsTogether : end;
    for (int64_t row = 0; row < m; row += 4) {
      WithRowCount(m - row, [&]<int M>(std::integral_constant<int, M>) {
        WithFormat(dtype, [&]<typename Format>() {
          const auto some = [&]<int R>(std::integral_constant<int, R>, int64_t j) {
            float dots[R][M];
            Dots::template Run<Format>(prepared + row * prepared_bytes, prepared_bytes, blocks + j * row_bytes,
                                       row_bytes, k, dots);
            for (int r = 0; r < R; ++r) StoreDots(dots[r], j + r, bias, accumulate, y + row * y_stride, y_stride);
          };
          constexpr int kPair = M == 1 ? 2 : 1;
          int64_t j = first;
          for (; j + kPair <= stop; j += kPair) some(std::integral_constant<int, kPair>(), j);
          if (j < stop) some(std::integral_constant<int, 1>(), j);
        });
      });
    }
  }
}

template <typename V>
void Rows(const float* x, int64_t x_stride, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
          int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride) {
  WithRowCount(m, [&]<int M>(std::integral_constant<int, M>) {
    WithElements(w, dtype, [&]<typename T>(const T* elements) {
      for (int64_t j = begin; j < end; ++j) {
        float dots[M];
        RowDots<V, T, M>(x, x_stride, elements + j * k, k, dots);
        StoreDots(dots, j, bias, accumulate, y, y_stride);
      }
    });
  });
}

}  // namespace
}  // namespace shiftrt
