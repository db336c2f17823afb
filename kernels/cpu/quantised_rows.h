// SPDX-License-Identifier: Apache-2.0
// Products of few rows of x with rows of quantised blocks, for SimdBody. Everything is in an anonymous namespace on
// purpose, as in simd_body_impl.h, which includes this header.
//
// Such a product rounds x to 16 bits within each group (PrepareGroups): x = u n, with u the largest absolute value of
// the group divided by 32767 and n an integer. A group's share of the product is then s u (q . n) + o u (sum of n),
// with s, q and o as in kernels/cpu/quantised_formats.h; its sums of integers are exact. The error of an element of x
// is at most 2^-16 of the largest of its group. The even elements of a group stand apart from the odd ones, since the
// bytes of a vector become words by a mask and a shift then. Two groups share 64 integers: the even elements of the
// first and of the second, then the odd ones of both.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/eight_lanes.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/quantised_formats.h"

namespace shiftrt {
namespace {

// A row of x, rounded. Blocks of 256 numbers find what belongs to their groups and halves of groups side by side.
struct PreparedGroups {
  int16_t* integers;  // (k, padded to 64); see Place
  float* units;       // (k / 32), u
  float* sums;        // (k / 32), u times the sum of the integers
  float* half_units;  // (k / 16), u once for each half
  float* half_sums;   // (k / 16)

  // In memory of Bytes(k), 64-byte aligned.
  PreparedGroups(std::byte* memory, int64_t k)
      : integers(reinterpret_cast<int16_t*>(memory)),
        units(reinterpret_cast<float*>(memory + Integers(k))),
        sums(units + Padded(k)),
        half_units(sums + Padded(k)),
        half_sums(half_units + 2 * Padded(k)) {}
  static int64_t Bytes(int64_t k) { return Integers(k) + 6 * Padded(k) * static_cast<int64_t>(sizeof(float)); }
  // The place among the integers at which the 16 even elements of a group begin. The odd ones begin kGroup further.
  static constexpr int64_t Place(int64_t group) { return group / 2 * 2 * kGroup + group % 2 * (kGroup / 2); }

 private:
  static int64_t Integers(int64_t k) { return (k + 2 * kGroup - 1) / (2 * kGroup) * 2 * kGroup * 2; }  // in bytes
  // Vectors of 16 floats may be read from each block's eight groups on.
  static int64_t Padded(int64_t k) { return (k / kGroup + 31) / 16 * 16; }
};

inline int64_t PreparedBytes(int64_t k) { return PreparedGroups::Bytes(k); }

// 32 elements of x as integers of a size of at most `most`, times a unit.
struct RoundedGroup {
  int32_t integers[kGroup], halves[2] = {};  // the sums of both halves
  float unit;                                // NaN if an element is not finite, so that the products are NaN, too

  RoundedGroup(const float* x, float most) {
    constexpr int kLanes = 8;  // which the compiler makes vectors of
    float largest[kLanes] = {}, zeros[kLanes] = {};
    for (int i = 0; i < kGroup; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float size = std::abs(x[i + lane]);
        largest[lane] = size > largest[lane] ? size : largest[lane];
        zeros[lane] += x[i + lane] * 0;
      }
    }
    float size = 0, zero = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      size = std::max(size, largest[lane]);
      zero += zeros[lane];
    }
    unit = size / most + zero;
    const float inverse = size > 0 ? most / size : 0;
    for (int i = 0; i < kGroup; ++i) {
      // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits of the mantissa.
      const float shifted = x[i] * inverse + 12582912.0f;
      std::memcpy(&integers[i], &shifted, sizeof shifted);
      integers[i] -= 0x4b400000;
    }
    for (int i = 0; i < kGroup / 2; ++i) halves[0] += integers[i];
    for (int i = kGroup / 2; i < kGroup; ++i) halves[1] += integers[i];
  }
};

inline void PrepareGroups(const float* x, int64_t k, std::byte* memory) {
  const PreparedGroups out(memory, k);
  for (int64_t group = 0; group < k / kGroup; ++group) {
    const RoundedGroup rounded(x + group * kGroup, 32767);
    for (int64_t i = 0; i < kGroup / 2; ++i) {
      out.integers[out.Place(group) + i] = static_cast<int16_t>(rounded.integers[2 * i]);
      out.integers[out.Place(group) + kGroup + i] = static_cast<int16_t>(rounded.integers[2 * i + 1]);
    }
    out.units[group] = rounded.unit;
    out.sums[group] = rounded.unit * static_cast<float>(rounded.halves[0] + rounded.halves[1]);
    for (int half = 0; half < 2; ++half) {
      out.half_units[2 * group + half] = rounded.unit;
      out.half_sums[2 * group + half] = rounded.unit * static_cast<float>(rounded.halves[half]);
    }
  }
}

// In each lane four products of the words of a group, at most 255, with integers of a row of x.
inline EightInts GroupProducts(const WordPair& words, const int16_t* integers) {
  return AddPairProducts(PairProducts(words.even, LoadAs<GroupPairs>(integers)), words.odd,
                         LoadAs<GroupPairs>(integers + kGroup));
}

// The scales of a block of eight groups, times the units of M rows of x from their half or group `first` on: calls
// take(i, at, factors) with those of row i from `at` on. Adds the block's offsets times the sums of x to `offset`.
template <typename Format, int M, typename RowOf, typename Take>
[[gnu::always_inline]] inline void BlockFactors(const std::byte* block, const RowOf& x_of, int64_t first,
                                                const Take& take, EightFloats (&offset)[M]) {
  constexpr int kCount = static_cast<int>(kGroupsOfBlock) * Format::kHalves;
  alignas(32) float scales[kCount], offsets[kCount];
  Format::Scales(block, scales, offsets);
#pragma GCC unroll 2
  for (int at = 0; at < kCount; at += 8) {
    EightFloats scale = LoadAs<EightFloats>(scales + at), shift{};
    if constexpr (Format::kOffset)
      shift = LoadAs<EightFloats>(offsets + at);
    else if constexpr (Format::kZero != 0)
      shift = scale * static_cast<float>(-Format::kZero);
    if constexpr (requires { Format::kFactors; }) scale *= Format::kFactors;
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      const PreparedGroups x = x_of(i);
      take(i, at, scale * LoadAs<EightFloats>((Format::kHalves == 2 ? x.half_units : x.units) + first + at));
      const float* const sums = (Format::kHalves == 2 ? x.half_sums : x.sums) + first + at;
      if constexpr (Format::kOffset || Format::kZero != 0)
        offset[i] = MultiplyAdd(shift, LoadAs<EightFloats>(sums), offset[i]);
    }
  }
}

// to + by times the products of the words of a group with integers of a row of x.
inline EightFloats AddGroup(EightFloats to, const WordPair& words, const int16_t* integers, EightFloats by) {
  return MultiplyAdd(__builtin_convertvector(GroupProducts(words, integers), EightFloats), by, to);
}

// The sums of one row of blocks of one group with M rows of x: two of each, which hide the latency of the additions.
template <typename Format, int M>
struct SumsOfGroups {
  EightFloats sum[M][2] = {};

  // Adds the four blocks from `group`, an even number, on, of which each is multiplied with its factor. RowOf gives row
  // i of x.
  template <typename RowOf>
  [[gnu::always_inline]] void AddFour(const std::byte* blocks, const RowOf& x_of, int64_t group,
                                      const FourFloats (&factors)[M]) {
    float by[M][4];
    std::memcpy(by, factors, sizeof by);
    asm("" : "+m"(by));  // as in QuantisedDots
#pragma GCC unroll 4
    for (int which = 0; which < 4; ++which) {
      const WordPair words = WordsOf(NumbersIn<Format>(blocks + which * Format::kBytes, 0));
#pragma GCC unroll 4
      for (int i = 0; i < M; ++i)
        sum[i][which % 2] = AddGroup(sum[i][which % 2], words,
                                     x_of(i).integers + PreparedGroups::Place(group) + PreparedGroups::Place(which),
                                     Eight(by[i][which]));
    }
  }
  void AddOne(int i, const std::byte* block, const int16_t* integers, float by) {
    sum[i][0] = AddGroup(sum[i][0], WordsOf(NumbersIn<Format>(block, 0)), integers, Eight(by));
  }
  EightFloats Total(int i) const { return sum[i][0] + sum[i][1]; }
};

// Dot products of R rows of blocks of one group, row_bytes apart, with M prepared rows of x. R rows together load x
// once.
template <typename Format, typename Sums, int R, int M>
inline void OneGroupDots(const std::byte* prepared, int64_t prepared_bytes, const std::byte* w, int64_t row_bytes,
                         int64_t k, float (&out)[R][M]) {
  const auto x_of = [&](int i) { return PreparedGroups(const_cast<std::byte*>(prepared) + i * prepared_bytes, k); };
  Sums sums[R];
  FourFloats offsets[R][M] = {};
  float offset[R][M] = {};
  // Four groups together turn their scales into float32 by one instruction.
  constexpr int kFour = 4;
  const int64_t groups = k / kGroup;
  int64_t first = 0;
  for (; first + kFour <= groups; first += kFour) {
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      const std::byte* const blocks = w + r * row_bytes + first * Format::kBytes;
      PrefetchAhead(blocks, kFour * Format::kBytes, kQuantisedAhead);
      const FourFloats scales = Format::FourScales(blocks);
      FourFloats factors[M];
#pragma GCC unroll 4
      for (int i = 0; i < M; ++i) {
        factors[i] = scales * LoadAs<FourFloats>(x_of(i).units + first);
        FourFloats shift{};
        if constexpr (Format::kOffset)
          shift = FourHalves(blocks + 2, Format::kBytes);
        else
          shift = scales * static_cast<float>(-Format::kZero);
        offsets[r][i] += shift * LoadAs<FourFloats>(x_of(i).sums + first);
      }
      sums[r].AddFour(blocks, x_of, first, factors);
    }
  }
  for (; first < groups; ++first)
    for (int r = 0; r < R; ++r) {
      const std::byte* const block = w + r * row_bytes + first * Format::kBytes;
      const float scale = Format::Scale(block);
      const float shift = Format::kOffset ? Format::Offset(block) : scale * static_cast<float>(-Format::kZero);
      for (int i = 0; i < M; ++i) {
        sums[r].AddOne(i, block, x_of(i).integers + PreparedGroups::Place(first), scale * x_of(i).units[first]);
        offset[r][i] += shift * x_of(i).sums[first];
      }
    }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < M; ++i) {
      const FourFloats& four = offsets[r][i];
      out[r][i] = Sum(sums[r].Total(i)) + ((four[0] + four[1]) + (four[2] + four[3]) + offset[r][i]);
    }
}

// The same for blocks of one or eight groups.
template <typename Format, int R, int M>
inline void QuantisedDots(const std::byte* prepared, int64_t prepared_bytes, const std::byte* w, int64_t row_bytes,
                          int64_t k, float (&out)[R][M]) {
  if constexpr (Format::kGroups == 1) {
    OneGroupDots<Format, SumsOfGroups<Format, M>>(prepared, prepared_bytes, w, row_bytes, k, out);
  } else {
    EightFloats sum[R][M][2] = {};
    const auto x_of = [&](int i) { return PreparedGroups(const_cast<std::byte*>(prepared) + i * prepared_bytes, k); };
    EightFloats offset[R][M] = {};
    constexpr int kCount = static_cast<int>(kGroupsOfBlock) * Format::kHalves;
    for (int64_t block = 0; block < k / (kGroup * kGroupsOfBlock); ++block, w += Format::kBytes) {
      alignas(32) float by[R][M][kCount];
      for (int r = 0; r < R; ++r) {
        PrefetchAhead(w + r * row_bytes, Format::kBytes, kQuantisedAhead);
        BlockFactors<Format, M>(
            w + r * row_bytes, x_of, block * kCount,
            [&](int i, int at, EightFloats factors) { std::memcpy(by[r][i] + at, &factors, sizeof factors); },
            offset[r]);
      }
      // The scales are read from memory, since a load that broadcasts takes none of the units that the products need.
      asm("" : "+m"(by));
#pragma GCC unroll 8
      for (int group = 0; group < kGroupsOfBlock; ++group) {
        const int at = group * Format::kHalves;
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
          const std::byte* const at_row = w + r * row_bytes;
          WordPair words;
          if constexpr (requires { Format::kFactors; })
            words = Format::Words(at_row, group);
          else
            words = WordsOf(NumbersIn<Format>(at_row, group));
#pragma GCC unroll 4
          for (int i = 0; i < M; ++i)
            sum[r][i][group % 2] =
                AddGroup(sum[r][i][group % 2], words,
                         x_of(i).integers + block * kGroupsOfBlock * kGroup + PreparedGroups::Place(group),
                         Format::kHalves == 2 ? Eight(by[r][i][at], by[r][i][at + 1]) : Eight(by[r][i][at]));
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < M; ++i) out[r][i] = Sum(sum[r][i][0] + sum[r][i][1] + offset[r][i]);
  }
}

}  // namespace
}  // namespace shiftrt
