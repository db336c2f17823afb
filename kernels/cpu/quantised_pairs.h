// SPDX-License-Identifier: Apache-2.0
// Products of few rows of x with rows of quantised blocks, as kernels/cpu/quantised_rows.h, with vectors of 512 bits:
// one holds what belongs to two groups of a block. The bits of the results are those of that header. Everything is in
// an anonymous namespace on purpose, as in simd_body_impl.h.
#pragma once

#include "kernels/cpu/lanes512.h"
#include "kernels/cpu/quantised_rows.h"

namespace shiftrt {
namespace {

using PairBytes = int8_t __attribute__((vector_size(2 * kGroup)));  // of two groups, one after the other
using PairWords = uint16_t __attribute__((vector_size(2 * kGroup)));
struct PairWordPair {
  PairWords even, odd;
};

// In each lane the sum of the products of two pairs of signed words, added to `sum`.
inline SixteenInts AddPairProducts(SixteenInts sum, PairWords a, PairWords b) {
#if defined(__AVX512VNNI__)
  return (SixteenInts)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  const auto x = (SixteenInts)a, y = (SixteenInts)b;
  return sum + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

// The 32 bytes of memory twice.
inline PairWords TwiceAt(const std::byte* at) {
#if defined(__AVX512F__)
  return (PairWords)_mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#else
  PairWords twice;
  std::memcpy(&twice, at, kGroup);
  std::memcpy(reinterpret_cast<char*>(&twice) + kGroup, at, kGroup);
  return twice;
#endif
}

inline PairWords JoinedGroups(GroupBytes first, GroupBytes second) {
#if defined(__AVX512F__)
  return (PairWords)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)first), (__m256i)second, 1);
#else
  PairWords joined;
  std::memcpy(&joined, &first, sizeof first);
  std::memcpy(reinterpret_cast<char*>(&joined) + kGroup, &second, sizeof second);
  return joined;
#endif
}

inline PairWordPair WordsOf(PairWords numbers) { return {numbers & 255, numbers >> 8}; }

// A word for each place of the first group, then one for each place of the second.
constexpr PairWords Each(uint16_t first, uint16_t second) {
  return PairWords{first,  first,  first,  first,  first,  first,  first,  first,  first,  first,  first,
                   first,  first,  first,  first,  first,  second, second, second, second, second, second,
                   second, second, second, second, second, second, second, second, second, second};
}

// Shifts the words of the groups to the left by so many bits; both shifts have one sign.
inline PairWords Shifted(PairWords words, int first, int second) {
  const auto by = [](int shift) { return static_cast<uint16_t>(shift < 0 ? -shift : shift); };
  return first + second > 0 ? words << Each(by(first), by(second)) : words >> Each(by(first), by(second));
}

// factors[kFirst] to factors[kFirst + kCount - 1], each in as many lanes.
template <int kFirst, int kCount>
inline SixteenFloats Spread(EightFloats factors) {
  constexpr int kEach = 16 / kCount;
#if defined(__AVX512F__)
  const SixteenInts place = SixteenInts{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} / kEach + kFirst;
  return (SixteenFloats)_mm512_permutexvar_ps((__m512i)place, _mm512_castps256_ps512((__m256)factors));
#else
  SixteenFloats spread;
  for (int i = 0; i < 16; ++i) spread[i] = factors[kFirst + i / kEach];
  return spread;
#endif
}

// The words of groups 2 pair and 2 pair + 1 of a block, times 1 / kFactors where the format has these. `pair` is known
// when this is compiled.
template <typename Format>
[[gnu::always_inline]] inline PairWordPair PairWordsOf(const std::byte* block, int pair) {
  constexpr uint16_t kLow = 0x0f0f;  // the lower nibble of both bytes of a word
  PairWords numbers;
  if constexpr (std::is_same_v<Format, Q4KBlock>) {
    const PairWords both = TwiceAt(block + 16 + pair * kGroup), mask = Each(0x0f, 0xf0);
    return {both & mask, both >> 8 & mask};
  } else if constexpr (std::is_same_v<Format, Q5KBlock>) {
    const PairWords nibbles = Shifted(TwiceAt(block + 48 + pair * kGroup), 0, -4) & kLow;
    numbers = nibbles | (Shifted(TwiceAt(block + 16), 4 - 2 * pair, 3 - 2 * pair) & 0x1010);
  } else if constexpr (std::is_same_v<Format, Q6KBlock>) {
    const int64_t half = pair / 2;  // of the block
    const PairWords low = LoadAs<PairWords>(block + half * 2 * kGroup) >> (pair % 2 * 4) & kLow;
    const PairWords high = TwiceAt(block + 128 + half * kGroup);
    numbers = low | ((pair % 2 == 0 ? Shifted(high, 4, 2) : Shifted(high, 0, -2)) & 0x3030);
  } else if constexpr (std::is_same_v<Format, Q2KBlock>) {
    const int place = pair % 2 * 4;
    numbers = Shifted(TwiceAt(block + 16 + pair / 2 * kGroup), -place, -place - 2) & 0x0303;
  } else if constexpr (std::is_same_v<Format, Q3KBlock>) {
    const int place = pair % 2 * 4;
    numbers = Shifted(TwiceAt(block + 32 + pair / 2 * kGroup), -place, -place - 2) & 0x0303;
    numbers |= Shifted(TwiceAt(block), 2 - 2 * pair, 1 - 2 * pair) & 0x0404;
  } else {
    numbers = JoinedGroups(NumbersIn<Format>(block, 2 * pair), NumbersIn<Format>(block, 2 * pair + 1));
  }
  return WordsOf(numbers);
}

// sum + factors times the products of the words of two groups, at most 255, with the integers of a row of x.
inline SixteenFloats AddPair(SixteenFloats sum, const PairWordPair& words, const int16_t* x, SixteenFloats factors) {
  const SixteenInts even = AddPairProducts(SixteenInts{}, words.even, LoadAs<PairWords>(x));
  const SixteenInts all = AddPairProducts(even, words.odd, LoadAs<PairWords>(x + kGroup));
  return Lanes512::MultiplyAdd(__builtin_convertvector(all, SixteenFloats), factors, sum);
}

// As QuantisedDots, for formats with blocks of eight groups.
template <typename Format, int R, int M>
inline void PairDots(const std::byte* prepared, int64_t prepared_bytes, const std::byte* w, int64_t row_bytes,
                     int64_t k, float (&out)[R][M]) {
  constexpr int kPairs = static_cast<int>(kGroupsOfBlock) / 2, kCount = 2 * kPairs * Format::kHalves;
  const auto x_of = [&](int i) { return PreparedGroups(const_cast<std::byte*>(prepared) + i * prepared_bytes, k); };
  SixteenFloats sum[R][M] = {};
  EightFloats offset[R][M] = {};
  for (int64_t block = 0; block < k / (kGroup * kGroupsOfBlock); ++block, w += Format::kBytes) {
    EightFloats by[R][M][Format::kHalves];
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      PrefetchAhead(w + r * row_bytes, Format::kBytes, kQuantisedAhead);
      BlockFactors<Format, M>(
          w + r * row_bytes, x_of, block * kCount,
          [&](int i, int at, EightFloats factors) __attribute__((always_inline)) { by[r][i][at / 8] = factors; },
          offset[r]);
    }
    const auto add = [&]<int kPair>(std::integral_constant<int, kPair>) __attribute__((always_inline)) {
      constexpr int kScales = 2 * Format::kHalves, kAt = kPair * kScales;
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        const PairWordPair words = PairWordsOf<Format>(w + r * row_bytes, kPair);
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i) {
          sum[r][i] = AddPair(sum[r][i], words, x_of(i).integers + (block * kPairs + kPair) * 2 * kGroup,
                              Spread<kAt % 8, kScales>(by[r][i][kAt / 8]));
        }
      }
    };
    add(std::integral_constant<int, 0>());
    add(std::integral_constant<int, 1>());
    add(std::integral_constant<int, 2>());
    add(std::integral_constant<int, 3>());
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < M; ++i) {
      EightFloats halves[2];
      std::memcpy(halves, &sum[r][i], sizeof halves);
      out[r][i] = Sum(halves[0] + halves[1] + offset[r][i]);
    }
}

// As SumsOfGroups.
template <typename Format, int M>
struct SumsOfPairs {
  SixteenFloats sum[M] = {};

  template <typename RowOf>
  [[gnu::always_inline]] void AddFour(const std::byte* blocks, const RowOf& x_of, int64_t group,
                                      const FourFloats (&factors)[M]) {
    const auto add = [&]<int kFirst>(std::integral_constant<int, kFirst>) __attribute__((always_inline)) {
      const std::byte* const block = blocks + kFirst * Format::kBytes;
      const PairWordPair words =
          WordsOf(JoinedGroups(NumbersIn<Format>(block, 0), NumbersIn<Format>(block + Format::kBytes, 0)));
#pragma GCC unroll 4
      for (int i = 0; i < M; ++i)
        sum[i] = AddPair(sum[i], words, x_of(i).integers + (group + kFirst) * kGroup,
                         Spread<kFirst, 2>(__builtin_shufflevector(factors[i], factors[i], 0, 1, 2, 3, 4, 5, 6, 7)));
    };
    add(std::integral_constant<int, 0>());
    add(std::integral_constant<int, 2>());
  }
  void AddOne(int i, const std::byte* block, const int16_t* integers, float by) {
    EightFloats halves[2];
    std::memcpy(halves, &sum[i], sizeof halves);
    halves[0] = AddGroup(halves[0], WordsOf(NumbersIn<Format>(block, 0)), integers, Eight(by));
    std::memcpy(&sum[i], halves, sizeof halves);
  }
  EightFloats Total(int i) const {
    EightFloats halves[2];
    std::memcpy(halves, &sum[i], sizeof halves);
    return halves[0] + halves[1];
  }
};

// The products of SimdBody::quantised_rows.
struct DotsOfPairs {
  template <typename Format, int R, int M>
  static void Run(const std::byte* prepared, int64_t prepared_bytes, const std::byte* w, int64_t row_bytes, int64_t k,
                  float (&out)[R][M]) {
    if constexpr (Format::kGroups == 1)
      OneGroupDots<Format, SumsOfPairs<Format, M>>(prepared, prepared_bytes, w, row_bytes, k, out);
    else
      PairDots<Format>(prepared, prepared_bytes, w, row_bytes, k, out);
  }
};

}  // namespace
}  // namespace shiftrt
