// The algorithm behind SimdBody, templated over a policy: Reg, kWidth, kTileRows, and a handful of operations.
// Included once by each instruction set's file; everything is in an anonymous namespace on purpose.
#pragma once

#include "kernels/simd_body.h"

namespace shiftrt {
namespace {

template <typename T>
float WidenOne(T value) {
  return static_cast<float>(value);
}

// Dot products of one row of w with M rows of x. Four accumulators a row of x hide the latency of the additions.
template <typename V, typename T, int M>
void RowDots(const float* x, int64_t x_stride, const T* w, int64_t k, float* out) {
  constexpr int kUnroll = M == 1 ? 4 : 2;
  typename V::Reg sum[M][kUnroll];
  for (int i = 0; i < M; ++i)
    for (int u = 0; u < kUnroll; ++u) sum[i][u] = V::Zero();
  int64_t at = 0;
  for (; at + kUnroll * V::kWidth <= k; at += kUnroll * V::kWidth) {
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

template <typename V, typename T, int M>
void RowsOf(const float* x, int64_t x_stride, const T* w, int64_t k, int64_t begin, int64_t end, const float* bias,
            bool accumulate, float* y, int64_t y_stride) {
  for (int64_t j = begin; j < end; ++j) {
    float dots[M];
    RowDots<V, T, M>(x, x_stride, w + j * k, k, dots);
    for (int i = 0; i < M; ++i) {
      float* out = y + i * y_stride + j;
      *out = (accumulate ? *out : 0.0f) + dots[i] + (bias != nullptr ? bias[j] : 0.0f);
    }
  }
}

template <typename V, typename T>
void RowsOfType(const float* x, int64_t x_stride, int64_t m, const T* w, int64_t k, int64_t begin, int64_t end,
                const float* bias, bool accumulate, float* y, int64_t y_stride) {
  switch (m) {
    case 1: return RowsOf<V, T, 1>(x, x_stride, w, k, begin, end, bias, accumulate, y, y_stride);
    case 2: return RowsOf<V, T, 2>(x, x_stride, w, k, begin, end, bias, accumulate, y, y_stride);
    case 3: return RowsOf<V, T, 3>(x, x_stride, w, k, begin, end, bias, accumulate, y, y_stride);
    default: return RowsOf<V, T, 4>(x, x_stride, w, k, begin, end, bias, accumulate, y, y_stride);
  }
}

template <typename V>
void Rows(const float* x, int64_t x_stride, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
          int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride) {
  switch (dtype) {
    case DType::kBFloat16:
      return RowsOfType<V>(x, x_stride, m, static_cast<const BFloat16*>(w), k, begin, end, bias, accumulate, y,
                           y_stride);
    case DType::kFloat16:
      return RowsOfType<V>(x, x_stride, m, static_cast<const Float16*>(w), k, begin, end, bias, accumulate, y,
                           y_stride);
    default:
      return RowsOfType<V>(x, x_stride, m, static_cast<const float*>(w), k, begin, end, bias, accumulate, y, y_stride);
  }
}

// Squares of kWidth x kWidth are transposed in registers; what is left over goes element by element.
template <typename V, typename T>
void PackPanelOf(const T* w, int64_t stride, int64_t cols, int64_t depth, float* packed) {
  constexpr int64_t kCols = 2 * V::kWidth;
  for (int64_t half = 0; half < kCols; half += V::kWidth) {
    int64_t k = 0;
    if (half + V::kWidth <= cols)
      for (; k + V::kWidth <= depth; k += V::kWidth)
        V::Transpose(w + half * stride + k, stride, packed + k * kCols + half, kCols);
    for (; k < depth; ++k)
      for (int64_t j = half; j < half + V::kWidth; ++j)
        packed[k * kCols + j] = j < cols ? WidenOne(w[j * stride + k]) : 0.0f;
  }
}

template <typename V>
void PackPanel(const void* w, DType dtype, int64_t stride, int64_t cols, int64_t depth, float* packed) {
  switch (dtype) {
    case DType::kBFloat16: return PackPanelOf<V>(static_cast<const BFloat16*>(w), stride, cols, depth, packed);
    case DType::kFloat16: return PackPanelOf<V>(static_cast<const Float16*>(w), stride, cols, depth, packed);
    default: return PackPanelOf<V>(static_cast<const float*>(w), stride, cols, depth, packed);
  }
}

template <typename V>
void Tile(const float* a, const float* b, int64_t depth, float* tile) {
  constexpr int kRows = V::kTileRows;
  typename V::Reg sum[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = V::Zero();
  for (int64_t k = 0; k < depth; ++k) {
    const typename V::Reg left = V::Load(b), right = V::Load(b + V::kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const typename V::Reg x = V::Broadcast(a[i]);
      sum[i][0] = V::MultiplyAdd(x, left, sum[i][0]);
      sum[i][1] = V::MultiplyAdd(x, right, sum[i][1]);
    }
    a += kRows;
    b += 2 * V::kWidth;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    V::Store(tile + i * 2 * V::kWidth, sum[i][0]);
    V::Store(tile + i * 2 * V::kWidth + V::kWidth, sum[i][1]);
  }
}

template <typename V>
float Dot(const float* a, const float* b, int64_t n) {
  float out;
  RowDots<V, float, 1>(a, 0, b, n, &out);
  return out;
}

template <typename V>
void Axpy(float alpha, const float* x, float* y, int64_t n) {
  const typename V::Reg scale = V::Broadcast(alpha);
  int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) V::Store(y + i, V::MultiplyAdd(scale, V::Load(x + i), V::Load(y + i)));
  for (; i < n; ++i) y[i] += alpha * x[i];
}

template <typename V>
constexpr SimdBody MakeBody() {
  return {V::kTileRows, 2 * V::kWidth, &Rows<V>, &PackPanel<V>, &Tile<V>, &Dot<V>, &Axpy<V>};
}

// Element by element, for policies without a transposition of their own.
template <int kWidth, typename T>
void TransposeScalar(const T* w, int64_t stride, float* out, int64_t out_stride) {
  for (int j = 0; j < kWidth; ++j)
    for (int k = 0; k < kWidth; ++k) out[k * out_stride + j] = WidenOne(w[j * stride + k]);
}

}  // namespace
}  // namespace shiftrt
