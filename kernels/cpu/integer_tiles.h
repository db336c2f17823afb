// SPDX-License-Identifier: Apache-2.0
// Products of many prepared rows of x with rows of quantised blocks, by an instruction that multiplies four unsigned
// bytes with four signed ones and adds the products to a 32-bit sum: that of AVX512-VNNI, or EmulatedIntegers. The
// words of blocks of 16 rows of w are transposed, so that a lane belongs to a row, and their bits become bytes there. x
// has two bytes: the upper ones are multiplied first, and their sum times 256 is where that of the lower ones begins.
// In rounded products x has one byte. The sums of a group, or of each of its halves if they have scales of their own,
// are exact; they are then multiplied by the scale of the row and the unit of x, and added in float32, one group after
// the other. Everything is in an anonymous namespace on purpose, as in simd_body_impl.h.
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

constexpr int64_t kIntegerLanes = 16;  // rows of w of a register
constexpr int kIntegerColumns = 3;     // registers of a tile
constexpr int64_t kIntegerCols = kIntegerLanes * kIntegerColumns;
constexpr int64_t kIntegerRows = 4;        // rows of x of a tile
constexpr int64_t kIntegerBlock = 128;     // rows of x that meet a panel; then it is unpacked again
constexpr int kFoursOfGroup = kGroup / 4;  // words of four bytes

// The operations in plain C++.
struct EmulatedIntegers {
  using Reg = SixteenInts;
  static Reg Broadcast(const int8_t* four) { return Reg{} + LoadAs<int32_t>(four); }
  // sum + the products of the four bytes of every lane, unsigned ones of a and signed ones of b.
  static Reg MultiplyAdd(Reg a, Reg b, Reg sum) {
    for (int byte = 0; byte < 4; ++byte) sum += (a >> 8 * byte & 255) * (b << (24 - 8 * byte) >> 24);
    return sum;
  }
};

// A row of x, rounded: x = u n in each group. n has kBytes signed bytes: |n| <= 127 or 32639.
template <int kBytes>
struct PreparedFours {
  // (k / 32, kBytes, 32): of each group n, or the upper bytes, n + 128 divided by 256, and n - 256 times these.
  int8_t* bytes;
  float* units;      // (k / 32), u
  float* sums;       // (k / 32), u times the sum of n
  float* half_sums;  // (k / 16)

  // In memory of Bytes(k), 64-byte aligned.
  PreparedFours(std::byte* memory, int64_t k)
      : bytes(reinterpret_cast<int8_t*>(memory)),
        units(reinterpret_cast<float*>(memory + kBytes * k)),
        sums(units + k / kGroup),
        half_sums(sums + k / kGroup) {}
  static int64_t Bytes(int64_t k) {
    const int64_t bytes = kBytes * k + 4 * k / kGroup * static_cast<int64_t>(sizeof(float));
    return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
};

template <int kBytes>
void PrepareFours(const float* x, int64_t k, std::byte* memory) {
  const PreparedFours<kBytes> out(memory, k);
  for (int64_t group = 0; group < k / kGroup; ++group) {
    const RoundedGroup rounded(x + group * kGroup, kBytes == 1 ? 127 : 32639);
    int8_t* const bytes = out.bytes + kBytes * group * kGroup;
    for (int i = 0; i < kGroup; ++i) {
      const int32_t upper = kBytes == 1 ? rounded.integers[i] : (rounded.integers[i] + 128) >> 8;
      bytes[i] = static_cast<int8_t>(upper);
      if constexpr (kBytes == 2) bytes[kGroup + i] = static_cast<int8_t>(rounded.integers[i] - 256 * upper);
    }
    out.units[group] = rounded.unit;
    out.sums[group] = rounded.unit * static_cast<float>(rounded.halves[0] + rounded.halves[1]);
    for (int half = 0; half < 2; ++half)
      out.half_sums[2 * group + half] = rounded.unit * static_cast<float>(rounded.halves[half]);
  }
}

// The number of scales that a group of a format has.
template <typename Format>
constexpr int HalvesOf() {
  if constexpr (Format::kGroups == 1)
    return 1;
  else
    return Format::kHalves;
}

// As BlockBytes, for the elements 4 four to 4 four + 3 of a group of 16 blocks, one in each lane. words[i] has the four
// bytes from byte `from` + 4 i of a block on.
struct LaneBytes {
  const SixteenInts* words;
  int64_t from;
  int four;

  SixteenInts Bits(int32_t mask, int64_t at, int64_t left) const {
    const SixteenInts word = words[(at - from) / 4 + four];
    return (left < 0 ? word >> static_cast<int>(-left) : word << static_cast<int>(left)) & mask * 0x01010101;
  }
  SixteenInts Raised(int64_t at) const { return words[(at - from) / 4 + four] ^ static_cast<int32_t>(0x80808080); }
  SixteenInts Nibbles(int64_t at) const { return words[(at - from) / 4 + four % 4] >> four / 4 * 4 & 0x0f0f0f0f; }
  SixteenInts NumbersOf(const SixteenNumbers& numbers, int64_t at) const {
    const SixteenInts nibbles = Nibbles(at);
#if defined(__AVX512BW__)
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers.data()));
    return (SixteenInts)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)nibbles);
#else
    SixteenInts found{};
    for (int lane = 0; lane < kIntegerLanes; ++lane)
      for (int bit = 0; bit < 32; bit += 8) found[lane] |= int32_t{numbers[nibbles[lane] >> bit & 15]} << bit;
    return found;
#endif
  }
  SixteenInts FifthBits(int64_t at) const {
    // Four bits, times a number that moves each of them to the lowest bit of a byte.
    const SixteenInts bits = words[(at - from) / 4] >> 4 * four & 15;
    return (bits * 0x00204081 & 0x01010101) << 4;
  }
};

// 16 bytes of each of four addresses.
inline SixteenInts FourRows(const std::byte* a, const std::byte* b, const std::byte* c, const std::byte* d) {
#if defined(__AVX512F__)
  const auto load = [](const std::byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
  const __m512i ab = _mm512_inserti32x4(_mm512_castsi128_si512(load(a)), load(b), 1);
  return (SixteenInts)_mm512_inserti32x4(_mm512_inserti32x4(ab, load(c), 2), load(d), 3);
#else
  SixteenInts rows;
  for (int i = 0; i < 4; ++i)
    std::memcpy(reinterpret_cast<char*>(&rows) + 16 * i, (i < 2 ? i < 1 ? a : b : i < 3 ? c : d), 16);
  return rows;
#endif
}

// words[i] = the four bytes from `from` + 4 i on of each of 16 rows, for i < kWords, at least 4.
template <int kWords>
inline void TransposeWords(const std::byte* const (&row)[kIntegerLanes], int64_t from, SixteenInts* words) {
  constexpr int kSteps = (kWords + 3) / 4;
#pragma GCC unroll 12
  for (int step = 0; step < kSteps; ++step) {
    const int64_t first = std::min(4 * step, kWords - 4);  // the last four may have words of those before them
    SixteenInts square[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int64_t at = from + 4 * first;
      square[i] = FourRows(row[i] + at, row[4 + i] + at, row[8 + i] + at, row[12 + i] + at);
    }
    TransposeSquares(square);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) words[first + i] = square[i];
  }
}

// Up to kIntegerCols rows of w over the eight groups of a block, or as many blocks of one group.
template <int kHalves>
struct IntegerPanel {
  static constexpr int kScales = static_cast<int>(kGroupsOfBlock) * kHalves;
  alignas(64) SixteenInts fours[kGroupsOfBlock * kFoursOfGroup][kIntegerColumns];
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

// Unpacks the scales of `groups` groups of 16 rows, and the offsets. Without these, a format has the scale times
// -kZero.
template <typename Format, int kHalves>
void UnpackScales(const std::byte* const (&row)[kIntegerLanes], int64_t groups, int column,
                  IntegerPanel<kHalves>& panel) {
  constexpr int kScales = IntegerPanel<kHalves>::kScales;
  if constexpr (Format::kGroups == 1) {
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t j = 0; j < kIntegerLanes; ++j) {
        const std::byte* const block = row[j] + group * Format::kBytes;
        const int64_t at = column * kIntegerLanes + j;
        panel.scales[group][at] = Format::Scale(block);
        panel.offsets[group][at] =
            Format::kOffset ? Format::Offset(block) : panel.scales[group][at] * static_cast<float>(-Format::kZero);
      }
  } else {
    alignas(64) float scales[kIntegerLanes][kSixteen] = {}, offsets[kIntegerLanes][kSixteen] = {};
    for (int j = 0; j < kIntegerLanes; ++j) Format::Scales(row[j], scales[j], offsets[j]);
    TransposeScales<kScales>(scales, column, panel.scales);
    if constexpr (Format::kOffset) {
      TransposeScales<kScales>(offsets, column, panel.offsets);
    } else {
      for (int at = 0; at < kScales; ++at)
        for (int64_t j = column * kIntegerLanes; j < (column + 1) * kIntegerLanes; ++j)
          panel.offsets[at][j] = panel.scales[at][j] * static_cast<float>(-Format::kZero);
    }
  }
}

// Unpacks `groups` groups of 16 rows of blocks, row_bytes apart, of which `rows` are there: the last one takes the
// place of those after it.
template <typename Format, int kHalves>
void UnpackRows(const std::byte* w, int64_t row_bytes, int64_t rows, int64_t groups, int column,
                IntegerPanel<kHalves>& panel) {
  const std::byte* row[kIntegerLanes];
  for (int j = 0; j < kIntegerLanes; ++j) {
    row[j] = w + std::min<int64_t>(j, rows - 1) * row_bytes;
    PrefetchAhead(row[j], groups * Format::kBytes / Format::kGroups, kQuantisedAhead);
  }
  UnpackScales<Format>(row, groups, column, panel);
  SixteenInts words[Format::kWords];
  if constexpr (Format::kGroups == 1) {
    for (int64_t group = 0; group < groups; ++group) {
      TransposeWords<Format::kWords>(row, group * Format::kBytes + Format::kFrom, words);
#pragma GCC unroll 8
      for (int four = 0; four < kFoursOfGroup; ++four)
        panel.fours[group * kFoursOfGroup + four][column] = Format::Numbers(LaneBytes{words, Format::kFrom, four}, 0);
    }
  } else {
    TransposeWords<Format::kWords>(row, Format::kFrom, words);
#pragma GCC unroll 8
    for (int group = 0; group < kGroupsOfBlock; ++group)
#pragma GCC unroll 8
      for (int four = 0; four < kFoursOfGroup; ++four)
        panel.fours[group * kFoursOfGroup + four][column] =
            Format::Numbers(LaneBytes{words, Format::kFrom, four}, group);
  }
}

// to[i][j] += the product of row i of x and row j of w over the groups of one panel, for i < kIntegerRows and
// j < 16 kColumns. `group` is the first group of the panel. Of x, `rows` rows are there, as in UnpackRows.
template <typename Integers, int kBytes, int kColumns, int kHalves>
void IntegerTile(const PreparedFours<kBytes>* x, int64_t rows, const IntegerPanel<kHalves>& panel, int64_t group,
                 int64_t groups, float* to) {
  const int8_t* bytes[kIntegerRows];
  const float *units[kIntegerRows], *sums[kIntegerRows];
  SixteenFloats total[kIntegerRows][kColumns];
#pragma GCC unroll 4
  for (int i = 0; i < kIntegerRows; ++i) {
    const int64_t from = std::min<int64_t>(i, rows - 1);
    bytes[i] = x[from].bytes + kBytes * group * kGroup;
    units[i] = x[from].units + group;
    sums[i] = (kHalves == 2 ? x[from].half_sums : x[from].sums) + group * kHalves;
#pragma GCC unroll 3
    for (int c = 0; c < kColumns; ++c) total[i][c] = Lanes512::Load(to + from * kIntegerCols + c * kIntegerLanes);
  }
  for (int64_t part = 0; part < groups * kHalves; ++part) {
    constexpr int kFours = kFoursOfGroup / kHalves;
    typename Integers::Reg sum[kIntegerRows][kColumns] = {};
    const auto add = [&](int64_t place) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int64_t four = 0; four < kFours; ++four) {
#pragma GCC unroll 4
        for (int i = 0; i < kIntegerRows; ++i) {
          const typename Integers::Reg value = Integers::Broadcast(bytes[i] + place + 4 * four);
#pragma GCC unroll 3
          for (int c = 0; c < kColumns; ++c)
            sum[i][c] = Integers::MultiplyAdd(panel.fours[part * kFours + four][c], value, sum[i][c]);
        }
      }
    };
    const int64_t upper = part / kHalves * kBytes * kGroup + part % kHalves * (kGroup / 2);
    add(upper);
    if constexpr (kBytes == 2) {
#pragma GCC unroll 4
      for (int i = 0; i < kIntegerRows; ++i)
#pragma GCC unroll 3
        for (int c = 0; c < kColumns; ++c) sum[i][c] <<= 8;
      add(upper + kGroup);
    }
#pragma GCC unroll 3
    for (int c = 0; c < kColumns; ++c) {
      const SixteenFloats scale = Lanes512::Load(panel.scales[part] + c * kIntegerLanes);
      const SixteenFloats offset = Lanes512::Load(panel.offsets[part] + c * kIntegerLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kIntegerRows; ++i) {
        total[i][c] = Lanes512::MultiplyAdd(__builtin_convertvector(sum[i][c], SixteenFloats),
                                            scale * Lanes512::Broadcast(units[i][part / kHalves]), total[i][c]);
        total[i][c] = Lanes512::MultiplyAdd(offset, Lanes512::Broadcast(sums[i][part]), total[i][c]);
      }
    }
  }
  for (int64_t i = 0; i < std::min<int64_t>(rows, kIntegerRows); ++i)
    for (int c = 0; c < kColumns; ++c) Lanes512::Store(to + i * kIntegerCols + c * kIntegerLanes, total[i][c]);
}

// The products of at most kIntegerBlock rows of x with `cols` <= kIntegerCols rows of w, into sums (rows,
// kIntegerCols).
template <typename Integers, typename Format, int kBytes, int kHalves>
void SumPanels(std::span<const PreparedFours<kBytes>> x, const std::byte* w, int64_t k, int64_t cols, float* sums) {
  const int64_t row_bytes = k / kGroup / Format::kGroups * Format::kBytes, m = std::ssize(x);
  const int columns = static_cast<int>((cols + kIntegerLanes - 1) / kIntegerLanes);
  const auto tile = columns == 1   ? &IntegerTile<Integers, kBytes, 1, kHalves>
                    : columns == 2 ? &IntegerTile<Integers, kBytes, 2, kHalves>
                                   : &IntegerTile<Integers, kBytes, 3, kHalves>;
  IntegerPanel<kHalves> panel;
  std::fill_n(sums, m * kIntegerCols, 0.0f);
  for (int64_t group = 0; group < k / kGroup; group += kGroupsOfBlock) {
    const int64_t groups = std::min(kGroupsOfBlock, k / kGroup - group);
    for (int column = 0; column < columns; ++column) {
      const int64_t first = column * kIntegerLanes;
      UnpackRows<Format>(w + first * row_bytes + group / Format::kGroups * Format::kBytes, row_bytes, cols - first,
                         groups, column, panel);
    }
    for (int64_t i = 0; i < m; i += kIntegerRows) {
      for (int64_t ahead = i + kIntegerRows; ahead < std::min(m, i + 2 * kIntegerRows); ++ahead)
        for (int64_t at = 0; at < kBytes * groups * kGroup; at += kCacheLine)
          __builtin_prefetch(x[ahead].bytes + kBytes * group * kGroup + at);
      tile(x.data() + i, m - i, panel, group, groups, sums + i * kIntegerCols);
    }
  }
}

template <typename Integers, int kBytes>
void IntegerTiles(const std::byte* prepared, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
                  int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride) {
  using Prepared = PreparedFours<kBytes>;
  std::vector<Prepared> x;
  for (int64_t i = 0; i < m; ++i) x.emplace_back(const_cast<std::byte*>(prepared) + i * Prepared::Bytes(k), k);
  alignas(64) float sums[kIntegerBlock * kIntegerCols];
  WithFormat(dtype, [&]<typename Format>() {
    for (int64_t j = begin; j < end; j += kIntegerCols) {
      const int64_t cols = std::min(kIntegerCols, end - j);
      for (int64_t first = 0; first < m; first += kIntegerBlock) {
        const int64_t rows = std::min(kIntegerBlock, m - first);
        SumPanels<Integers, Format, kBytes, HalvesOf<Format>()>(
            std::span<const Prepared>(x).subspan(first, rows), static_cast<const std::byte*>(w) + j * BytesOf(dtype, k),
            k, cols, sums);
        for (int64_t i = 0; i < rows; ++i) {
          float* const out = y + (first + i) * y_stride + j;
          for (int64_t c = 0; c < cols; ++c)
            out[c] = (accumulate ? out[c] : 0.0f) + sums[i * kIntegerCols + c] + (bias != nullptr ? bias[j + c] : 0.0f);
        }
      }
    }
  });
}

template <typename Integers, int kBytes>
constexpr IntegerProduct MakeIntegerProduct() {
  return {&PreparedFours<kBytes>::Bytes, &PrepareFours<kBytes>, &IntegerTiles<Integers, kBytes>};
}

}  // namespace
}  // namespace shiftrt
