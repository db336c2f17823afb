// SPDX-License-Identifier: Apache-2.0
// Rounded products (kernels/matmul.h) with an instruction that multiplies pairs of bfloat16 numbers and adds both
// products to a float32. A packed pair takes the place of one float32: the register tile is that of simd_body_impl.h,
// over half the depth. Templated over the pair operations: those of AVX512-BF16 or EmulatedPairs. Everything is in an
// anonymous namespace on purpose, as in simd_body_impl.h.
#pragma once

#include "kernels/cpu/bfloat16_words.h"

namespace shiftrt {
namespace {

// The operations in plain C++. AVX512-BF16 also counts numbers below 2^-126 as 0.
struct EmulatedPairs : EmulatedLanes512 {
  // A pair as a float: no arithmetic may touch its bits.
  static Reg Broadcast(float pair) {
    uint32_t bits;
    std::memcpy(&bits, &pair, sizeof bits);
    return (Reg)(Bits{} + bits);
  }
  // sum + a0 b0 + a1 b1 for the pairs (a0, a1) and (b0, b1) of every lane. The products are exact.
  static Reg MultiplyAdd(Reg a, Reg b, Reg sum) {
    const auto low = [](Reg pairs) { return (Reg)((Bits)pairs << 16); };
    const auto high = [](Reg pairs) { return (Reg)((Bits)pairs & 0xffff0000u); };
    return (sum + low(a) * low(b)) + high(a) * high(b);
  }
  // The rounded numbers of two vectors, those of `low` first.
  static Words Round(SixteenFloats low, SixteenFloats high) { return UpperHalves(Rounded(low), Rounded(high)); }
  // Loads the first `count` < 16 elements and zeros.
  static SixteenFloats LoadFirst(const float* from, int64_t count) { return LoadColumns(from, count); }
};

// 32 elements as pairs; only the first `count` are read, and the others are 0.
template <typename Pairs, typename T>
inline SixteenInts LoadPairs(const T* from, int64_t count) {
  SixteenFloats x[2];
  LoadStep(from, count, x);
  return (SixteenInts)Pairs::Round(x[0], x[1]);
}

template <typename Pairs>
inline SixteenInts LoadPairs(const BFloat16* from, int64_t count) {
  BFloat16 ends[kStep] = {};
  if (count < kStep) {
    std::copy_n(from, count, ends);
    from = ends;
  }
  SixteenInts pairs;
  std::memcpy(&pairs, from, sizeof pairs);
  return pairs;
}

// Packs w[j][k] for j < rows <= kRows and k < depth as packed[pair of k][j][k within the pair]; 0 where there is no
// row.
template <typename Pairs, int kRows, typename T>
void PackPairRows(const T* w, int64_t stride, int64_t rows, int64_t depth, void* packed) {
  constexpr int64_t kStored = std::min<int64_t>(kRows, kLanes), kLine = kCacheLine / static_cast<int64_t>(sizeof(T));
  static_assert(kRows % kStored == 0);
  auto* out = static_cast<int32_t*>(packed);
  for (int64_t k = 0; k < depth; k += kStep, out += kLanes * kRows) {
    const int64_t pairs = std::min(kLanes, (depth - k + 1) / 2);
    for (int64_t first = 0; first < kRows; first += kStored) {
      SixteenInts square[kLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        const T* const from = w + (first + i) * stride + k;
        square[i] = i < kStored && first + i < rows ? LoadPairs<Pairs>(from, depth - k) : SixteenInts{};
        // The next kRows rows are packed next.
        for (int64_t line = 0; i < kStored && line < kStep; line += kLine)
          __builtin_prefetch(from + kRows * stride + line);
      }
      Transpose16(square);
      for (int64_t pair = 0; pair < pairs; ++pair)
        std::memcpy(out + pair * kRows + first, &square[pair], kStored * sizeof(int32_t));
    }
  }
}

// The pairs of two vectors: lane i is (even[i], odd[i]).
template <typename Pairs>
inline Words Interleaved(SixteenFloats even, SixteenFloats odd) {
  const Words both = Pairs::Round(even, odd);
  return __builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
                                 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// Packs columns x[k][i] for i < rows in the layout of PackPairRows.
template <typename Pairs>
void PackPairColumns(const float* x, int64_t stride, int64_t rows, int64_t depth, void* packed) {
  constexpr int64_t kRows = Pairs::kTileRows;
  auto* out = static_cast<int32_t*>(packed);
  for (int64_t k = 0; k < depth; k += 2, x += 2 * stride, out += kRows) {
    const SixteenFloats even = Pairs::LoadFirst(x, rows),
                        odd = k + 1 < depth ? Pairs::LoadFirst(x + stride, rows) : SixteenFloats{};
    const Words pairs = Interleaved<Pairs>(even, odd);
    std::memcpy(out, &pairs, kRows * sizeof(int32_t));
  }
}

// Packs columns b[k][j] for j < cols in the layout of PackPairRows.
template <typename Pairs, typename T>
void PackPairRight(const T* b, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  auto* out = static_cast<int32_t*>(packed);
  for (int64_t k = 0; k < depth; k += 2, b += 2 * stride) {
    for (int64_t first = 0; first < 2 * kLanes; first += kLanes, out += kLanes) {
      const SixteenFloats even = LoadColumns(b + first, cols - first),
                          odd = k + 1 < depth ? LoadColumns(b + stride + first, cols - first) : SixteenFloats{};
      const Words pairs = Interleaved<Pairs>(even, odd);
      std::memcpy(out, &pairs, sizeof pairs);
    }
  }
}

// The same of bfloat16 numbers, which are the halves of pairs as they are.
template <typename Pairs>
void PackPairRight(const BFloat16* b, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  auto* out = static_cast<uint16_t*>(packed);
  const auto load = [&](const BFloat16* from) {
    BFloat16 ends[kStep] = {};
    if (cols < kStep) {
      std::copy_n(from, cols, ends);
      from = ends;
    }
    Words words;
    std::memcpy(&words, from, sizeof words);
    return words;
  };
  for (int64_t k = 0; k < depth; k += 2, b += 2 * stride, out += 2 * kStep) {
    const Words even = load(b), odd = k + 1 < depth ? load(b + stride) : Words{};
    const Words low = __builtin_shufflevector(even, odd, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40,
                                              9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
    const Words high = __builtin_shufflevector(even, odd, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23,
                                               55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
    std::memcpy(out, &low, sizeof low);
    std::memcpy(out + kStep, &high, sizeof high);
  }
}

template <typename Pairs>
void PackPairPanel(const void* w, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  constexpr int kCols = 2 * kLanes;
  WithElements(w, dtype, [&](const auto* rows) { PackPairRows<Pairs, kCols>(rows, stride, cols, depth, packed); });
}

template <typename Pairs>
void PackPairRightOf(const void* b, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  WithElements(b, dtype, [&](const auto* rows) { PackPairRight<Pairs>(rows, stride, cols, depth, packed); });
}

template <typename Pairs>
void MultiplyPairs(const PackedBlock& block, bool accumulate, float* y, int64_t stride) {
  PackedBlock pairs = block;
  pairs.depth = (block.depth + 1) / 2;
  MultiplyBlock<Pairs>(pairs, accumulate, y, stride);
}

// The rounded product, for a right operand of any type.
template <typename Pairs>
constexpr BlockProduct MakePairProduct() {
  return {.tile_rows = Pairs::kTileRows,
          .tile_cols = 2 * kLanes,
          .max_rows = 768,
          .max_depth = 2 * Pairs::kMaxDepth,
          .step = 2,
          .x_bytes = sizeof(BFloat16),
          .pack_rows = &PackPairRows<Pairs, Pairs::kTileRows, float>,
          .pack_columns = &PackPairColumns<Pairs>,
          .pack_panel = &PackPairPanel<Pairs>,
          .pack_right = &PackPairRightOf<Pairs>,
          .multiply = &MultiplyPairs<Pairs>};
}

}  // namespace
}  // namespace shiftrt
