// SPDX-License-Identifier: Apache-2.0
// The algorithms of SimdBody, templated over a policy: Reg (a vector type with arithmetic operators), kWidth,
// kTileRows, kMaxDepth, and a few operations. Each instruction set's file includes this header once; everything is in
// an anonymous namespace on purpose.
#pragma once

#include <cstring>
#include <iterator>
#include <type_traits>

#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu/quantised_tiles.h"
#include "kernels/cpu/row_dots.h"
#include "kernels/cpu/simd_body.h"

namespace shiftrt {
namespace {

constexpr int64_t kSlice = 8;     // elements of depth of a register tile between prefetches
constexpr int64_t kFewTiles = 4;  // up to this number of tiles, packing the weights takes as long as multiplying them

// The beginning of PackTransposed for bfloat16, with half the exchanges: pairs of elements are transposed before they
// are widened. Returns the packed depth, which is the largest multiple of two kWidth.
template <typename V, int kRows>
int64_t PackPairsTransposed(const BFloat16* w, int64_t stride, int64_t rows, int64_t depth, float* out) {
  using Int = typename V::Int;
  constexpr int64_t kWidth = V::kWidth, kStored = kRows < kWidth ? kRows : kWidth;
  int64_t k = 0;
  for (; k + 2 * kWidth <= depth; k += 2 * kWidth) {
    for (int64_t first = 0; first < kRows; first += kStored) {
      typename V::Reg square[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        square[i] = V::Zero();
        if (i < kStored && first + i < rows) std::memcpy(&square[i], w + (first + i) * stride + k, sizeof square[i]);
      }
      // The next kRows rows are packed next.
#pragma GCC unroll 16
      for (int i = 0; i < kStored; ++i) __builtin_prefetch(w + (first + i + kRows) * stride + k);
      V::Transpose(square);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kWidth; ++i) {
        const Int low = (Int)square[i] << 16, high = (Int)square[i] & static_cast<int32_t>(0xffff0000);
        std::memcpy(out + (k + 2 * i) * kRows + first, &low, kStored * sizeof(float));
        std::memcpy(out + (k + 2 * i + 1) * kRows + first, &high, kStored * sizeof(float));
      }
    }
  }
  return k;
}

// out[k * kRows + i] = w[i * stride + k] for k < depth and i < kRows, zero from row `rows` on. Squares of kWidth x
// kWidth are transposed in registers; the elements after the last square are copied one by one.
template <typename V, int kRows, typename T>
void PackTransposed(const T* w, int64_t stride, int64_t rows, int64_t depth, float* out) {
  constexpr int kWidth = V::kWidth, kStored = kRows < kWidth ? kRows : kWidth;
  static_assert(kRows % kStored == 0);
  int64_t k = 0;
  if constexpr (std::is_same_v<T, BFloat16>) k = PackPairsTransposed<V, kRows>(w, stride, rows, depth, out);
  for (; k + kWidth <= depth; k += kWidth) {
    for (int64_t first = 0; first < kRows; first += kStored) {
      typename V::Reg square[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i)
        square[i] = i < kStored && first + i < rows ? V::Load(w + (first + i) * stride + k) : V::Zero();
        // The next kRows rows are packed next.
#pragma GCC unroll 16
      for (int i = 0; i < kStored; ++i) __builtin_prefetch(w + (first + i + kRows) * stride + k);
      V::Transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) std::memcpy(out + (k + i) * kRows + first, &square[i], kStored * sizeof(float));
    }
  }
  for (; k < depth; ++k)
    for (int64_t i = 0; i < kRows; ++i) out[k * kRows + i] = i < rows ? WidenOne(w[i * stride + k]) : 0.0f;
}

template <typename V>
void PackPanel(const void* w, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  constexpr int kCols = 2 * V::kWidth;
  auto* out = static_cast<float*>(packed);
  WithElements(w, dtype, [&](const auto* rows) { PackTransposed<V, kCols>(rows, stride, cols, depth, out); });
}

template <typename V>
void PackRows(const float* x, int64_t stride, int64_t rows, int64_t depth, void* packed) {
  PackTransposed<V, V::kTileRows>(x, stride, rows, depth, static_cast<float*>(packed));
}

// out[k * kCols + j] = b[k * stride + j] for k < depth and j < kCols, zero from column `cols` on.
template <typename V, int kCols, typename T>
void PackStraight(const T* b, int64_t stride, int64_t cols, int64_t depth, float* out) {
  for (int64_t k = 0; k < depth; ++k, b += stride, out += kCols) {
    if (cols == kCols && kCols % V::kWidth == 0) {
#pragma GCC unroll 2
      for (int j = 0; j < kCols; j += V::kWidth) V::Store(out + j, V::Load(b + j));
    } else {
      for (int64_t j = 0; j < kCols; ++j) out[j] = j < cols ? WidenOne(b[j]) : 0.0f;
    }
  }
}

template <typename V>
void PackRight(const void* b, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  constexpr int kCols = 2 * V::kWidth;
  auto* out = static_cast<float*>(packed);
  WithElements(b, dtype, [&](const auto* rows) { PackStraight<V, kCols>(rows, stride, cols, depth, out); });
}

template <typename V>
void PackColumns(const float* x, int64_t stride, int64_t rows, int64_t depth, void* packed) {
  constexpr int kRows = V::kTileRows;
  auto* out = static_cast<float*>(packed);
  for (int64_t k = 0; k < depth; ++k, x += stride, out += kRows) {
    if (rows == kRows) {
      std::memcpy(out, x, kRows * sizeof(float));
    } else {
      for (int64_t i = 0; i < kRows; ++i) out[i] = i < rows ? x[i] : 0.0f;
    }
  }
}

// Prefetches the operand that is packed next into the second-level cache, some lines at a time, so that it arrives
// while a block of few rows is multiplied.
class NextOperand {
 public:
  // Some() is called about `calls` times.
  NextOperand(const PackedBlock& block, int64_t calls) : at_(block.next), block_(block) {
    if (at_ != nullptr) lines_ = (block.next_rows * ((block.next_bytes + kCacheLine - 1) / kCacheLine)) / calls + 1;
  }
  void Some() {
    for (int64_t i = 0; i < lines_ && row_ < block_.next_rows; ++i) {
      __builtin_prefetch(at_ + byte_, 0, 2);
      byte_ += kCacheLine;
      if (byte_ < block_.next_bytes) continue;
      byte_ = 0;
      ++row_;
      at_ += block_.next_stride;
    }
  }

 private:
  const std::byte* at_;
  const PackedBlock& block_;
  int64_t lines_ = 0, row_ = 0, byte_ = 0;
};

// y[i][j] = (y[i][j] if accumulate) + sum_k a[k][i] b[k][j] for i < rows <= kRows and j < kRegs kWidth, of the MR rows
// of a and the NR columns of b. The sums do not depend on kRows. `next` may be null.
template <typename V, int kRegs, int kRows = V::kTileRows>
inline void SumTile(const float* a, const float* b, int64_t depth, int64_t rows, bool accumulate, float* y,
                    int64_t stride, NextOperand* next = nullptr) {
  constexpr int64_t kLine = kCacheLine / sizeof(float);
  typename V::Reg sum[kRows][kRegs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
    for (int half = 0; half < kRegs; ++half) sum[i][half] = V::Zero();
  // The rows of y are far apart. They are prefetched one by one, so that they arrive while the tile is summed: twelve
  // rows within the 144 steps that a rounded product of depth 288 has.
  for (int64_t k = 0, row = 0; k < depth; ++row) {
    if (next != nullptr) next->Some();
    for (int64_t j = 0; row < rows && j < kRegs * V::kWidth; j += kLine) __builtin_prefetch(y + row * stride + j, 1);
    const int64_t stop = depth - k < kSlice ? depth : k + kSlice;
#pragma GCC unroll 4
    for (; k < stop; ++k) {
      typename V::Reg right[kRegs];
#pragma GCC unroll 2
      for (int half = 0; half < kRegs; ++half) right[half] = V::Load(b + half * V::kWidth);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const typename V::Reg x = V::Broadcast(a[i]);
#pragma GCC unroll 2
        for (int half = 0; half < kRegs; ++half) sum[i][half] = V::MultiplyAdd(x, right[half], sum[i][half]);
      }
      a += V::kTileRows;
      b += 2 * V::kWidth;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    if (i >= rows) break;
#pragma GCC unroll 2
    for (int half = 0; half < kRegs; ++half) {
      float* out = y + i * stride + half * V::kWidth;
      V::Store(out, accumulate ? V::Add(V::Load(out), sum[i][half]) : sum[i][half]);
    }
  }
}

template <typename V>
void Tile(const float* a, const float* b, int64_t depth, float* tile) {
  SumTile<V, 2>(a, b, depth, V::kTileRows, false, tile, 2 * V::kWidth);
}

template <typename V>
void MultiplyBlock(const PackedBlock& block, bool accumulate, float* y, int64_t stride) {
  constexpr int64_t kRows = V::kTileRows, kCols = 2 * V::kWidth;
  const auto *x = static_cast<const float*>(block.x), *w = static_cast<const float*>(block.w);
  const int64_t tiles = (block.rows + kRows - 1) / kRows;
  NextOperand next(block, tiles * ((block.depth + kSlice - 1) / kSlice));
  for (int64_t i = 0; i < block.rows; i += kRows) {
    const int64_t rows = block.rows - i < kRows ? block.rows - i : kRows;
    float* out = y + i * stride;
    if (block.cols == kCols) {
      // The last rows take a lower tile if it has room for them.
      constexpr int64_t kThird = V::kTileRows / 3;
      const auto sum_tile = rows <= kThird       ? &SumTile<V, 2, kThird>
                            : rows <= 2 * kThird ? &SumTile<V, 2, 2 * kThird>
                                                 : &SumTile<V, 2>;
      sum_tile(x + i * block.depth, w, block.depth, rows, accumulate, out, stride,
               tiles <= kFewTiles ? &next : nullptr);
      continue;
    }
    alignas(64) float tile[kRows * kCols];
    if (block.cols <= V::kWidth) {
      SumTile<V, 1>(x + i * block.depth, w, block.depth, kRows, false, tile, kCols);
    } else {
      Tile<V>(x + i * block.depth, w, block.depth, tile);
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < block.cols; ++j)
        out[r * stride + j] = (accumulate ? out[r * stride + j] : 0.0f) + tile[r * kCols + j];
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

// kCount registers of AddWeighted: as many sums as hide the latency of the additions stay in registers.
template <typename V, int kCount>
void AddWeightedColumns(const float* weights, const float* x, int64_t x_stride, int64_t rows, float* y) {
  typename V::Reg sum[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) sum[i] = V::Load(y + i * V::kWidth);
  for (int64_t j = 0; j < rows; ++j) {
    const typename V::Reg weight = V::Broadcast(weights[j]);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) sum[i] = V::MultiplyAdd(weight, V::Load(x + j * x_stride + i * V::kWidth), sum[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) V::Store(y + i * V::kWidth, sum[i]);
}

template <typename V>
void AddWeighted(const float* weights, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t n) {
  int64_t at = 0;
  for (; at + 8 * V::kWidth <= n; at += 8 * V::kWidth)
    AddWeightedColumns<V, 8>(weights, x + at, x_stride, rows, y + at);
  for (; at + 4 * V::kWidth <= n; at += 4 * V::kWidth)
    AddWeightedColumns<V, 4>(weights, x + at, x_stride, rows, y + at);
  for (; at + V::kWidth <= n; at += V::kWidth) AddWeightedColumns<V, 1>(weights, x + at, x_stride, rows, y + at);
  for (int64_t j = 0; j < rows && at < n; ++j) Axpy<V>(weights[j], x + j * x_stride + at, y + at, n - at);
}

// e^x with a relative error below 3e-7 for results in the normal range; 0 below -87.3, clamped above 88, NaN for NaN.
template <typename V>
typename V::Reg Exp(typename V::Reg x) {
  using Int = typename V::Int;
  const typename V::Reg lowest = V::Broadcast(-87.3f), highest = V::Broadcast(88.0f);
  typename V::Reg clamped = highest < x ? highest : x;  // with this order a NaN stays NaN
  clamped = lowest > clamped ? lowest : clamped;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the mantissa.
  const typename V::Reg magic = V::Broadcast(12582912.0f);
  const typename V::Reg shifted = clamped * 1.44269504088896341f + magic;
  const typename V::Reg whole = shifted - magic;
  // x - whole ln 2 in two steps, so that the remainder is exact to the last bits.
  const typename V::Reg r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
  const typename V::Reg tail = r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)));
  const typename V::Reg p = 1.0f + r * (1.0f + r * (0.5f + tail));
  const auto power = (typename V::Reg)(((Int)shifted - (Int)magic + 127) << 23);
  return x < lowest ? V::Zero() : p * power;
}

// Both activations are x / (1 + exp(e(x))). Slope is -e'(x).
template <typename V>
struct SiluExponent {
  static typename V::Reg Of(typename V::Reg x) { return -x; }
  static typename V::Reg Slope(typename V::Reg) { return V::Broadcast(1); }
};
// gelu(x) = x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename V>
struct GeluTanhExponent {
  static typename V::Reg Of(typename V::Reg x) { return x * (-1.59576912f - 0.0713548163f * (x * x)); }
  static typename V::Reg Slope(typename V::Reg x) { return 1.59576912f + 0.2140644489f * (x * x); }
};

// Factors of the activation for the MLP without gate.
constexpr float kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

template <typename V, typename Exponent>
void GatedUnit(float* gate, const float* up, int64_t n) {
  static_assert(V::kWidth <= std::size(kOnes));
  const auto step = [&](float* g, const float* u) {
    const typename V::Reg x = V::Load(g);
    V::Store(g, x / (1.0f + Exp<V>(Exponent::Of(x))) * V::Load(u));
  };
  int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) step(gate + i, up != nullptr ? up + i : kOnes);
  if (i == n) return;
  float g[V::kWidth] = {}, u[V::kWidth] = {};
  for (int64_t j = i; j < n; ++j) g[j - i] = gate[j], u[j - i] = up != nullptr ? up[j] : 1;
  step(g, u);
  for (int64_t j = i; j < n; ++j) gate[j] = g[j - i];
}

// With p = 1 / (1 + exp(e(x))), the derivative of x p is p + x p (1 - p) * -e'(x).
template <typename V, typename Exponent>
void GatedUnitGradient(const float* gate, const float* up, float* dgate, float* dup, int64_t n) {
  const auto step = [&](const float* g, const float* u, float* dg, float* du) {
    using Reg = typename V::Reg;
    const Reg x = V::Load(g), dout = V::Load(dg), e = Exp<V>(Exponent::Of(x)), p = 1.0f / (1.0f + e);
    // 1 - p is e p, which does not cancel. Where |x| is above 100, p is 0 or 1, and no term may overflow.
    const Reg most = V::Broadcast(100.0f), least = -most;
    const Reg below = most < x ? most : x, near = below < least ? least : below;
    V::Store(du, dout * x * p);
    V::Store(dg, dout * V::Load(u) * (p + near * p * (e * p) * Exponent::Slope(near)));
  };
  int64_t i = 0;
  float unused[V::kWidth];
  for (; i + V::kWidth <= n; i += V::kWidth) {
    if (up != nullptr) {
      step(gate + i, up + i, dgate + i, dup + i);
    } else {
      step(gate + i, kOnes, dgate + i, unused);
    }
  }
  if (i == n) return;
  float g[V::kWidth] = {}, u[V::kWidth] = {}, dg[V::kWidth] = {}, du[V::kWidth];
  for (int64_t j = i; j < n; ++j) g[j - i] = gate[j], u[j - i] = up != nullptr ? up[j] : 1, dg[j - i] = dgate[j];
  step(g, u, dg, du);
  for (int64_t j = i; j < n; ++j) {
    dgate[j] = dg[j - i];
    if (dup != nullptr) dup[j] = du[j - i];
  }
}

// tanh with a relative error below 3e-7.
template <typename V>
typename V::Reg Tanh(typename V::Reg x) {
  using Reg = typename V::Reg;
  const Reg size = x < V::Zero() ? -x : x, z = x * x;
  // Below 5/8 the difference from 1 would cancel: a polynomial fitted to (tanh(x) - x) / x^3, relative error 5e-9.
  const Reg tail = -0.333332819f + z * (0.133314422f + z * (-0.053739715f + z * (0.020639087f - z * 0.00570498677f)));
  const Reg large = 1.0f - 2.0f / (Exp<V>(size + size) + 1.0f);
  return size < V::Broadcast(0.625f) ? x + x * z * tail : x < V::Zero() ? -large : large;
}

template <typename V>
void SoftCap(float* x, int64_t n, float scale, float cap) {
  const typename V::Reg inner = V::Broadcast(scale / cap), outer = V::Broadcast(cap);
  const auto step = [&](float* at) { V::Store(at, outer * Tanh<V>(V::Load(at) * inner)); };
  int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) step(x + i);
  if (i == n) return;
  float rest[V::kWidth] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
  step(rest);
  for (int64_t j = i; j < n; ++j) x[j] = rest[j - i];
}

template <typename V>
double Exponentiate(float* x, int64_t n, float shift) {
  constexpr int64_t kRun = 64 * V::kWidth;  // float32 sums stay short
  double total = 0;
  int64_t i = 0;
  while (i + V::kWidth <= n) {
    typename V::Reg sum = V::Zero();
    for (const int64_t stop = i + kRun; i < stop && i + V::kWidth <= n; i += V::kWidth) {
      const typename V::Reg e = Exp<V>(V::Load(x + i) - shift);
      V::Store(x + i, e);
      sum += e;
    }
    total += static_cast<double>(V::Sum(sum));
  }
  if (i == n) return total;
  float rest[V::kWidth] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = x[j] - shift;
  V::Store(rest, Exp<V>(V::Load(rest)));
  for (int64_t j = i; j < n; ++j) total += static_cast<double>(x[j] = rest[j - i]);
  return total;
}

// Processes kWidth of the NR columns, which are 2 kWidth apart. kFromFirst: every column sees the block's first key.
template <typename V, bool kFromFirst>
void SoftmaxColumns(float* scores, int64_t keys, float scale, const SeenKeys& seen, float* maximum, float* sum,
                    float* rescale) {
  using Reg = typename V::Reg;
  using Int = typename V::Int;
  constexpr int64_t kStride = 2 * V::kWidth;
  Int begin = {}, end;
  std::memcpy(&end, seen.end, sizeof end);
  if constexpr (!kFromFirst) std::memcpy(&begin, seen.begin, sizeof begin);
  int64_t from = 0, all = keys;  // every column sees the rows from .. all - 1
  for (int64_t j = 0; j < V::kWidth; ++j) {
    if constexpr (!kFromFirst) from = seen.begin[j] > from ? seen.begin[j] : from;
    all = seen.end[j] < all ? seen.end[j] : all;
  }
  const auto partly = [&](int64_t i) { return i >= all || (!kFromFirst && i < from); };
  const auto visible = [&](int64_t i) {
    const auto row = static_cast<int32_t>(i);
    if constexpr (kFromFirst) return end > row;
    return (end > row) & (begin <= row);
  };
  const Reg hidden = V::Broadcast(-3e38f), before = V::Load(maximum);
  Reg most = before;
  for (int64_t i = 0; i < keys; ++i) {
    Reg s = V::Load(scores + i * kStride);
    if (partly(i)) {
      s = visible(i) ? s : hidden;
      V::Store(scores + i * kStride, s);
    }
    most = s > most ? s : most;
  }
  Reg total = V::Zero();
  for (int64_t i = 0; i < keys; ++i) {
    Reg e = Exp<V>((V::Load(scores + i * kStride) - most) * scale);
    if (partly(i)) e = visible(i) ? e : V::Zero();
    V::Store(scores + i * kStride, e);
    total += e;
  }
  const Reg factor = Exp<V>((before - most) * scale);
  V::Store(rescale, factor);
  V::Store(maximum, most);
  V::Store(sum, V::Load(sum) * factor + total);
}

template <typename V>
void Softmax(float* scores, int64_t keys, float scale, const SeenKeys& seen, float* maximum, float* sum,
             float* rescale) {
  for (int64_t j = 0; j < 2 * V::kWidth; j += V::kWidth) {
    if (seen.begin == nullptr) {
      SoftmaxColumns<V, true>(scores + j, keys, scale, {nullptr, seen.end + j}, maximum + j, sum + j, rescale + j);
    } else {
      SoftmaxColumns<V, false>(scores + j, keys, scale, {seen.begin + j, seen.end + j}, maximum + j, sum + j,
                               rescale + j);
    }
  }
}

// kCapped: the scores have a soft cap.
template <typename V, bool kCapped>
void SoftmaxGradientRows(float* scores, float* gradients, int64_t rows, const ScoreRows& of) {
  using Reg = typename V::Reg;
  using Int = typename V::Int;
  constexpr int32_t kCols = 2 * V::kWidth;
  const Reg scale = V::Broadcast(of.scale), cap = V::Broadcast(of.soft_cap),
            inner = V::Broadcast(kCapped ? of.scale / of.soft_cap : 0.0f);
  Int lanes{};
  for (int32_t i = 0; i < V::kWidth; ++i) lanes[i] = i;
  for (int64_t r = 0; r < rows; ++r) {
    const Reg log_sum = V::Broadcast(of.log_sums[r]), mean = V::Broadcast(of.means[r]);
    const bool all = of.begin[r] <= 0 && of.end[r] >= kCols;
    for (int32_t j = 0; j < kCols; j += V::kWidth, scores += V::kWidth, gradients += V::kWidth) {
      Reg score = V::Load(scores), slope = scale;
      if constexpr (kCapped) {
        const Reg tanh = Tanh<V>(score * inner);
        score = cap * tanh;
        slope = scale * (1.0f - tanh * tanh);
      } else {
        score = score * scale;
      }
      Reg p = Exp<V>(score - log_sum), gradient = p * (V::Load(gradients) - mean) * slope;
      if (!all) {
        const Int key = lanes + j, seen = (key >= of.begin[r]) & (key < of.end[r]);
        p = seen ? p : V::Zero();
        gradient = seen ? gradient : V::Zero();
      }
      V::Store(scores, p);
      V::Store(gradients, gradient);
    }
  }
}

template <typename V>
void SoftmaxGradient(float* scores, float* gradients, int64_t rows, const ScoreRows& of) {
  of.soft_cap > 0 ? SoftmaxGradientRows<V, true>(scores, gradients, rows, of)
                  : SoftmaxGradientRows<V, false>(scores, gradients, rows, of);
}

template <typename V>
constexpr SimdBody MakeBody() {
  return {.product = {.tile_rows = V::kTileRows,
                      .tile_cols = 2 * V::kWidth,
                      .max_rows = 768,
                      .max_depth = V::kMaxDepth,
                      .step = 1,
                      .x_bytes = sizeof(float),
                      .pack_rows = &PackRows<V>,
                      .pack_columns = &PackColumns<V>,
                      .pack_panel = &PackPanel<V>,
                      .pack_right = &PackRight<V>,
                      .multiply = &MultiplyBlock<V>},
          .rows = &Rows<V>,
          .quantised_rows = {&PreparedBytes, &PrepareGroups, &QuantisedRows<DotsOfGroups>},
          .quantised_tiles = &QuantisedTiles<V>,
          .dequantise = &Dequantise<V>,
          .tile = &Tile<V>,
          .dot = &Dot<V>,
          .axpy = &Axpy<V>,
          .add_weighted = &AddWeighted<V>,
          .swiglu = &GatedUnit<V, SiluExponent<V>>,
          .geglu = &GatedUnit<V, GeluTanhExponent<V>>,
          .swiglu_gradient = &GatedUnitGradient<V, SiluExponent<V>>,
          .geglu_gradient = &GatedUnitGradient<V, GeluTanhExponent<V>>,
          .soft_cap = &SoftCap<V>,
          .exponentiate = &Exponentiate<V>,
          .softmax = &Softmax<V>,
          .softmax_gradient = &SoftmaxGradient<V>,
          .delta_columns = kDeltaRegs<V> * V::kWidth,
          .delta_rule = &DeltaRule<V>};
}

}  // namespace
}  // namespace shiftrt
