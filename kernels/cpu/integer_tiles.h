// SPDX-License-Identifier: Apache-2.0
// Products of many prepared rows of x (kernels/cpu/quantised_rows.h) with rows of quantised blocks, by an instruction
// that multiplies pairs of 16-bit integers and adds both products to a 32-bit sum: those of AVX512-VNNI, or
// EmulatedIntegers. The bytes of 32 rows of w are transposed, so that a lane belongs to a row, and widened to 16 bits.
// The sums of a group, or of each of its halves if they have scales of their own, are exact; they are then multiplied
// by the scale of the row and the unit of x, and added in float32, one group after the other. Everything is in an
// anonymous namespace on purpose, as in simd_body_impl.h.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cpu/lanes512.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/quantised_rows.h"
#include "kernels/cpu/simd_body.h"

namespace shiftrt {
namespace {

constexpr int64_t kIntegerLanes = 16, kIntegerColumns = 2;             // rows of w of a register; registers of a tile
constexpr int kPairsOfGroup = kGroup / 2, kFoursOfGroup = kGroup / 4;  // of integers
using SignedWords = int16_t __attribute__((vector_size(2 * kGroup)));
constexpr int64_t kIntegerCols = kIntegerLanes * kIntegerColumns;
constexpr int64_t kIntegerBlock = 192;  // rows of x that meet a panel; then it is widened again
constexpr int kTileRows = 6;            // rows of x of a tile
constexpr int kFewTileRows = 4;         // the same if x has at most kMostFewRows rows, of which six would waste more
constexpr int64_t kMostFewRows = 16;

// The operations in plain C++.
struct EmulatedIntegers {
  using Reg = SixteenInts;
  static Reg Broadcast(const int16_t* pair) {
    int32_t bits;
    std::memcpy(&bits, pair, sizeof bits);
    return Reg{} + bits;
  }
  // sum + a0 b0 + a1 b1 for the pairs (a0, a1) and (b0, b1) of every lane.
  static Reg MultiplyAdd(Reg a, Reg b, Reg sum) {
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
  }
};

// The number of scales that a group of a format has.
template <typename Format>
constexpr int HalvesOf() {
  if constexpr (Format::kGroups == 1)
    return 1;
  else
    return Format::kHalves;
}

// 32 rows of w over the eight groups of a block, or as many blocks of one group.
template <int kHalves>
struct IntegerPanel {
  static constexpr int kScales = static_cast<int>(kGroupsOfBlock) * kHalves;
  alignas(64) SixteenInts pairs[kGroupsOfBlock * kPairsOfGroup][kIntegerColumns];
  alignas(64) float scales[kScales][kIntegerCols], offsets[kScales][kIntegerCols];
};

// Stores kScales numbers of each of 16 rows as rows of 16 lanes.
template <int kScales>
void TransposeScales(const float (&rows)[kIntegerLanes][kSixteen], int column, float (*out)[kIntegerCols]) {
  SixteenFloats square[kIntegerLanes];
#pragma GCC unroll 16
  for (int j = 0; j < kIntegerLanes; ++j) square[j] = Lanes512::Load(rows[j]);
  Transpose16(square);
#pragma GCC unroll 16
  for (int at = 0; at < kScales; ++at) Lanes512::Store(out[at] + column * kIntegerLanes, square[at]);
}

// Widens `groups` groups of 16 rows of blocks, row_bytes apart, of which `rows` are there: the last one takes the place
// of those after it.
template <typename Format, int kHalves>
void WidenRows(const std::byte* w, int64_t row_bytes, int64_t rows, int64_t groups, int column,
               IntegerPanel<kHalves>& panel) {
  constexpr int kScales = IntegerPanel<kHalves>::kScales;
  const std::byte* row[kIntegerLanes];
  alignas(64) float scales[kIntegerLanes][kSixteen] = {}, offsets[kIntegerLanes][kSixteen] = {};
  for (int j = 0; j < kIntegerLanes; ++j) {
    row[j] = w + std::min<int64_t>(j, rows - 1) * row_bytes;
    PrefetchAhead(row[j], groups * Format::kBytes / Format::kGroups, kQuantisedAhead);
    if constexpr (Format::kGroups == 1) {
      for (int64_t group = 0; group < groups; ++group) {
        scales[j][group] = Format::Scale(row[j] + group * Format::kBytes);
        if constexpr (Format::kOffset) offsets[j][group] = Format::Offset(row[j] + group * Format::kBytes);
      }
    } else {
      Format::Scales(row[j], scales[j], offsets[j]);
    }
  }
  TransposeScales<kScales>(scales, column, panel.scales);
  if constexpr (Format::kOffset) TransposeScales<kScales>(offsets, column, panel.offsets);
  for (int64_t group = 0; group < groups; ++group) {
    const auto bytes = [&](int j) {
      return (EightInts)(Format::kGroups == 1 ? ValuesOf<Format>(row[j] + group * Format::kBytes, 0)
                                              : ValuesOf<Format>(row[j], group));
    };
    SixteenInts fours[kFoursOfGroup];  // four bytes of each of 16 rows
#pragma GCC unroll 8
    for (int j = 0; j < kFoursOfGroup; ++j)
      fours[j] = __builtin_shufflevector(bytes(j), bytes(j + kFoursOfGroup), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                                         13, 14, 15);
    Transpose8(fours);
    // The even bytes of each four come first among the pairs of the group, then the odd ones.
#pragma GCC unroll 8
    for (int j = 0; j < kFoursOfGroup; ++j) {
      const auto words = (SignedWords)fours[j];
      panel.pairs[group * kPairsOfGroup + j][column] = (SixteenInts)(words << 8 >> 8);
      panel.pairs[group * kPairsOfGroup + kFoursOfGroup + j][column] = (SixteenInts)(words >> 8);
    }
  }
}

// to[i][j] += the product of row i of x and row j of w over the groups of one panel, for i < kTileRows and
// j < kIntegerCols. `group` is the first group of the panel. Of x, `rows` rows are there, as in WidenRows.
template <typename Integers, bool kOffset, int kRows, int kHalves>
void IntegerTile(const PreparedGroups* x, int64_t rows, const IntegerPanel<kHalves>& panel, int64_t group,
                 int64_t groups, float* to) {
  const int16_t* integers[kRows];
  const float *units[kRows], *sums[kRows];
  SixteenFloats total[kRows][kIntegerColumns];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    const int64_t from = std::min<int64_t>(i, rows - 1);
    integers[i] = x[from].integers + PreparedGroups::Place(group);
    units[i] = (kHalves == 2 ? x[from].half_units : x[from].units) + group * kHalves;
    sums[i] = (kHalves == 2 ? x[from].half_sums : x[from].sums) + group * kHalves;
#pragma GCC unroll 2
    for (int c = 0; c < kIntegerColumns; ++c)
      total[i][c] = Lanes512::Load(to + from * kIntegerCols + c * kIntegerLanes);
  }
  for (int64_t part = 0; part < groups * kHalves; ++part) {
    constexpr int64_t kPairs = kPairsOfGroup / kHalves;
    const int64_t place = PreparedGroups::Place(part / kHalves) + part % kHalves * kPairs;
    typename Integers::Reg sum[kRows][kIntegerColumns] = {};
#pragma GCC unroll 16
    for (int64_t p = 0; p < kPairs; ++p) {
      // The even elements of a half of a group, then the odd ones.
      const int64_t pair =
          kHalves == 1 ? part * kPairs + p : part / 2 * kPairsOfGroup + part % 2 * 4 + p / 4 * 8 + p % 4;
      const SixteenInts first = panel.pairs[pair][0], second = panel.pairs[pair][1];
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        const typename Integers::Reg value =
            Integers::Broadcast(integers[i] + place + 2 * p / kPairs * kGroup + 2 * p % kPairs);
        sum[i][0] = Integers::MultiplyAdd(value, first, sum[i][0]);
        sum[i][1] = Integers::MultiplyAdd(value, second, sum[i][1]);
      }
    }
#pragma GCC unroll 2
    for (int c = 0; c < kIntegerColumns; ++c) {
      const SixteenFloats scale = Lanes512::Load(panel.scales[part] + c * kIntegerLanes);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        total[i][c] = Lanes512::MultiplyAdd(__builtin_convertvector(sum[i][c], SixteenFloats),
                                            scale * Lanes512::Broadcast(units[i][part]), total[i][c]);
        if constexpr (kOffset)
          total[i][c] = Lanes512::MultiplyAdd(Lanes512::Load(panel.offsets[part] + c * kIntegerLanes),
                                              Lanes512::Broadcast(sums[i][part]), total[i][c]);
      }
    }
  }
  for (int64_t i = 0; i < std::min<int64_t>(rows, kRows); ++i)
    for (int c = 0; c < kIntegerColumns; ++c) Lanes512::Store(to + i * kIntegerCols + c * kIntegerLanes, total[i][c]);
}

// The products of at most kIntegerBlock rows of x with `cols` <= kIntegerCols rows of w, into sums (rows,
// kIntegerCols).
template <typename Integers, typename Format, int kHalves>
void SumPanels(std::span<const PreparedGroups> x, const std::byte* w, int64_t k, int64_t cols, float* sums) {
  const int64_t row_bytes = k / kGroup / Format::kGroups * Format::kBytes, m = std::ssize(x);
  IntegerPanel<kHalves> panel;
  std::fill_n(sums, m * kIntegerCols, 0.0f);
  for (int64_t group = 0; group < k / kGroup; group += kGroupsOfBlock) {
    const int64_t groups = std::min(kGroupsOfBlock, k / kGroup - group);
    for (int column = 0; column < kIntegerColumns; ++column) {
      const int64_t first = std::min<int64_t>(column * kIntegerLanes, cols - 1);
      WidenRows<Format>(w + first * row_bytes + group / Format::kGroups * Format::kBytes, row_bytes, cols - first,
                        groups, column, panel);
    }
    const bool few = m <= kMostFewRows;
    const int64_t step = few ? kFewTileRows : kTileRows;
    const auto tile = few ? &IntegerTile<Integers, Format::kOffset, kFewTileRows, kHalves>
                          : &IntegerTile<Integers, Format::kOffset, kTileRows, kHalves>;
    for (int64_t i = 0; i < m; i += step) {
      for (int64_t ahead = i + step; ahead < std::min(m, i + 2 * step); ++ahead)
        for (int64_t at = 0; at < groups * kGroup; at += kCacheLine / 2)
          __builtin_prefetch(x[ahead].integers + group * kGroup + at);
      tile(x.data() + i, m - i, panel, group, groups, sums + i * kIntegerCols);
    }
  }
}

template <typename Integers>
void IntegerTiles(const std::byte* prepared, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
                  int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride) {
  std::vector<PreparedGroups> x;
  for (int64_t i = 0; i < m; ++i) x.emplace_back(const_cast<std::byte*>(prepared) + i * PreparedBytes(k), k);
  alignas(64) float sums[kIntegerBlock * kIntegerCols];
  WithFormat(dtype, [&]<typename Format>() {
    for (int64_t j = begin; j < end; j += kIntegerCols) {
      const int64_t cols = std::min(kIntegerCols, end - j);
      for (int64_t first = 0; first < m; first += kIntegerBlock) {
        const int64_t rows = std::min(kIntegerBlock, m - first);
        SumPanels<Integers, Format, HalvesOf<Format>()>(
            std::span(x).subspan(first, rows), static_cast<const std::byte*>(w) + j * BytesOf(dtype, k), k, cols, sums);
        for (int64_t i = 0; i < rows; ++i) {
          float* const out = y + (first + i) * y_stride + j;
          for (int64_t c = 0; c < cols; ++c)
            out[c] = (accumulate ? out[c] : 0.0f) + sums[i * kIntegerCols + c] + (bias != nullptr ? bias[j + c] : 0.0f);
        }
      }
    }
  });
}

}  // namespace
}  // namespace shiftrt
