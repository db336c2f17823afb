// SPDX-License-Identifier: Apache-2.0
// Products with rows of quantised blocks, and their conversion to float32, for SimdBody. Everything is in an anonymous
// namespace on purpose, as in simd_body_impl.h, which includes this header.
//
// Every format is read in groups of 32 numbers: signed bytes q, and for the group or each of its halves a scale s and
// an offset o. A number is s q + o. All scales are exact in float32, and so are the products of scale and byte, so that
// Dequantise() gives the bits that runtime/block_types.h gives.
//
// A product with few rows of x rounds x to 16 bits within each group (PrepareGroups): x = u n, with u the largest
// absolute value of the group divided by 32767 and n an integer. A group's share of the product is then
// s u (q . n) + o u (sum of n), whose sums of integers are exact. The error of an element of x is at most 2^-16 of the
// largest of its group.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/simd_body.h"

#if defined(__F16C__) || defined(__SSSE3__)
#include <immintrin.h>
#endif

namespace shiftrt {
namespace {

constexpr int64_t kGroup = 32, kGroupsOfBlock = 8;               // numbers; groups of the formats with blocks of 256
constexpr int kSixteen = 16;                                     // halves of groups of such a block
constexpr int64_t kQuantisedAhead = 8192, kQuantisedLine = 64;   // bytes of prefetching: beyond the page
using GroupBytes = int8_t __attribute__((vector_size(kGroup)));  // signed
using GroupPairs = uint16_t __attribute__((vector_size(kGroup)));
using HalfBytes = int8_t __attribute__((vector_size(kGroup / 2)));
using UnsignedHalf = uint8_t __attribute__((vector_size(kGroup / 2)));

inline float HalfAt(const std::byte* at) {
  Float16 value;
  std::memcpy(&value.bits, at, sizeof value.bits);
#if defined(__F16C__)
  return _cvtsh_ss(value.bits);
#else
  return static_cast<float>(value);
#endif
}

inline GroupBytes GroupAt(const std::byte* at) {
  GroupBytes bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return bytes;
}
inline HalfBytes HalfGroupAt(const void* at) {
  HalfBytes bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return bytes;
}

inline GroupBytes Joined(HalfBytes first, HalfBytes second) {
  return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
                                 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

// The bits of each byte from `shift` on, as many as kMask has.
template <int kMask>
inline GroupBytes BitsOf(GroupBytes bytes, int shift) {
  const GroupPairs shifted = (GroupPairs)bytes >> shift;  // bits of the other byte of a pair are masked
  return (GroupBytes)shifted & static_cast<int8_t>(kMask);
}
// Small bytes, shifted to the left.
inline GroupBytes Raised(GroupBytes bytes, int shift) { return (GroupBytes)((GroupPairs)bytes << shift); }

// For each byte, eight bytes that are 16 where it has a bit.
constexpr std::array<uint64_t, 256> kFifthBits = [] {
  std::array<uint64_t, 256> table{};
  for (uint64_t byte = 0; byte < 256; ++byte)
    for (int bit = 0; bit < 8; ++bit) table[byte] |= (byte >> bit & 1) << (8 * bit + 4);
  return table;
}();

// to[i] = by from[i] for 16 signed bytes.
template <typename V>
inline void ScaleBytes(const HalfBytes& from, float by, float* to) {
#pragma GCC unroll 4
  for (int i = 0; i < kSixteen / V::kWidth; ++i) V::Store(to + i * V::kWidth, V::FromBytes(from, i) * V::Broadcast(by));
}

// Formats with blocks of one group.

// 16 in each of 32 bytes whose bit of four bytes is set, else 0.
inline GroupBytes FifthBits(const std::byte* at) {
  uint32_t bits;
  std::memcpy(&bits, at, sizeof bits);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  return (GroupBytes)_mm256_maskz_set1_epi8(bits, 16);
#elif defined(__AVX2__)
  const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i byte = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(bits)), places);
  return (GroupBytes)_mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(byte, each), each), _mm256_set1_epi8(16));
#else
  uint64_t fifth[4];
  for (int i = 0; i < 4; ++i) fifth[i] = kFifthBits[bits >> 8 * i & 255];
  GroupBytes bytes;
  std::memcpy(&bytes, fifth, sizeof bytes);
  return bytes;
#endif
}

template <bool kFive, bool kMinimum>
struct NibbleBlock {
  static constexpr int64_t kGroups = 1, kScales = kMinimum ? 4 : 2, kHigh = kFive ? 4 : 0;
  static constexpr int64_t kBytes = kScales + kHigh + 16;
  static constexpr bool kOffset = kMinimum;

  static float Scale(const std::byte* block) { return HalfAt(block); }
  static float Offset(const std::byte* block) { return HalfAt(block + 2); }
  static GroupBytes Values(const std::byte* block) {
    UnsignedHalf nibbles;
    std::memcpy(&nibbles, block + kScales + kHigh, sizeof nibbles);
    const HalfBytes low = (HalfBytes)(nibbles & 15), high = (HalfBytes)(nibbles >> 4);
    GroupBytes values = Joined(low, high);
    if constexpr (kFive) values |= FifthBits(block + kScales);
    return kMinimum ? values : values - static_cast<int8_t>(kFive ? 16 : 8);
  }
};

struct Q8Block {
  static constexpr int64_t kGroups = 1, kBytes = 34;
  static constexpr bool kOffset = false;
  static float Scale(const std::byte* block) { return HalfAt(block); }
  static float Offset(const std::byte*) { return 0; }
  static GroupBytes Values(const std::byte* block) { return GroupAt(block + 2); }
};

// The values of nibbles that are not evenly spaced, as in runtime/block_types.cc.
constexpr int8_t kUnevenValues[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxValues[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The values of 32 nibbles, the low ones of 16 bytes first.
inline GroupBytes UnevenValues(const int8_t (&values)[16], const std::byte* nibbles) {
  UnsignedHalf bytes;
  std::memcpy(&bytes, nibbles, sizeof bytes);
#if defined(__SSSE3__)
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  const auto low = (HalfBytes)_mm_shuffle_epi8(table, (__m128i)(bytes & 15));
  const auto high = (HalfBytes)_mm_shuffle_epi8(table, (__m128i)(bytes >> 4));
#else
  HalfBytes low, high;
  for (int i = 0; i < kGroup / 2; ++i) {
    low[i] = values[bytes[i] & 15];
    high[i] = values[bytes[i] >> 4];
  }
#endif
  return Joined(low, high);
}

struct Iq4NlBlock {
  static constexpr int64_t kGroups = 1, kBytes = 18;
  static constexpr bool kOffset = false;
  static float Scale(const std::byte* block) { return HalfAt(block); }
  static float Offset(const std::byte*) { return 0; }
  static GroupBytes Values(const std::byte* block) { return UnevenValues(kUnevenValues, block + 2); }
};

struct MxFp4Block {
  static constexpr int64_t kGroups = 1, kBytes = 17;
  static constexpr bool kOffset = false;
  static float Scale(const std::byte* block) {
    const auto exponent = static_cast<uint32_t>(block[0]);
    const uint32_t bits = exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return scale;
  }
  static float Offset(const std::byte*) { return 0; }
  static GroupBytes Values(const std::byte* block) { return UnevenValues(kMxValues, block + 1); }
};

// Formats with blocks of eight groups. Scales() writes the scales of the groups, or of their halves if kHalves is 2,
// and the offsets of as many to `offsets` if the format has them. A call of it would cost a third of a product of four
// rows.

struct Q2KBlock {
  static constexpr int64_t kGroups = kGroupsOfBlock, kBytes = 84;
  static constexpr int kHalves = 2;
  static constexpr bool kOffset = true;
  template <typename V>
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float* offsets) {
    const UnsignedHalf bytes = (UnsignedHalf)HalfGroupAt(block);
    ScaleBytes<V>((HalfBytes)(bytes & 15), HalfAt(block + 80), scales);
    ScaleBytes<V>((HalfBytes)(bytes >> 4), -HalfAt(block + 82), offsets);
  }
  static GroupBytes Values(const std::byte* block, int64_t group) {
    return BitsOf<3>(GroupAt(block + 16 + group / 4 * 32), static_cast<int>(group % 4 * 2));
  }
};

struct Q3KBlock {
  static constexpr int64_t kGroups = kGroupsOfBlock, kBytes = 110;
  static constexpr int kHalves = 2;
  static constexpr bool kOffset = false;
  template <typename V>
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float*) {
    uint32_t words[3];
    std::memcpy(words, block + 96, sizeof words);
    using FourWords = uint32_t __attribute__((vector_size(16)));
    const FourWords low = {words[0], words[1], words[0] >> 4, words[1] >> 4};
    const FourWords high = {words[2], words[2] >> 2, words[2] >> 4, words[2] >> 6};
    const FourWords joined = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
    ScaleBytes<V>((HalfBytes)joined - static_cast<int8_t>(32), HalfAt(block + 108), scales);
  }
  static GroupBytes Values(const std::byte* block, int64_t group) {
    const GroupBytes twos = BitsOf<3>(GroupAt(block + 32 + group / 4 * 32), static_cast<int>(group % 4 * 2));
    return (twos | Raised(BitsOf<1>(GroupAt(block), static_cast<int>(group)), 2)) - static_cast<int8_t>(4);
  }
};

template <bool kFive>
struct Q4KOrQ5KBlock {
  static constexpr int64_t kGroups = kGroupsOfBlock, kBytes = kFive ? 176 : 144;
  static constexpr int kHalves = 1;
  static constexpr bool kOffset = true;
  // Eight scales and eight minimums of six bits each, in 12 bytes. scales[8] to scales[15] are not used.
  template <typename V>
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float* offsets) {
    uint32_t words[3];
    std::memcpy(words, block + 4, sizeof words);
    using FourWords = uint32_t __attribute__((vector_size(16)));
    const FourWords low = {words[0] & 0x3f3f3f3fu, words[2] & 0x0f0f0f0fu, words[1] & 0x3f3f3f3fu,
                           words[2] >> 4 & 0x0f0f0f0fu};
    const FourWords high = {0, words[0] >> 2 & 0x30303030u, 0, words[1] >> 2 & 0x30303030u};
    const auto bytes = (HalfBytes)(low | high);
    ScaleBytes<V>(bytes, HalfAt(block), scales);
    ScaleBytes<V>(__builtin_shufflevector(bytes, bytes, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7),
                  -HalfAt(block + 2), offsets);
  }
  static GroupBytes Values(const std::byte* block, int64_t group) {
    const GroupBytes nibbles =
        BitsOf<15>(GroupAt(block + (kFive ? 48 : 16) + group / 2 * 32), static_cast<int>(group % 2 * 4));
    if constexpr (!kFive) return nibbles;
    return nibbles | Raised(BitsOf<1>(GroupAt(block + 16), static_cast<int>(group)), 4);
  }
};

struct Q6KBlock {
  static constexpr int64_t kGroups = kGroupsOfBlock, kBytes = 210;
  static constexpr int kHalves = 2;
  static constexpr bool kOffset = false;
  template <typename V>
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float*) {
    ScaleBytes<V>(HalfGroupAt(block + 192), HalfAt(block + 208), scales);
  }
  static GroupBytes Values(const std::byte* block, int64_t group) {
    const GroupBytes low =
        BitsOf<15>(GroupAt(block + group / 4 * 64 + group % 2 * 32), static_cast<int>(group % 4 / 2 * 4));
    const GroupBytes high = BitsOf<3>(GroupAt(block + 128 + group / 4 * 32), static_cast<int>(group % 4 * 2));
    return (low | Raised(high, 4)) - static_cast<int8_t>(32);
  }
};

struct Iq4XsBlock {
  static constexpr int64_t kGroups = kGroupsOfBlock, kBytes = 136;
  static constexpr int kHalves = 1;
  static constexpr bool kOffset = false;
  template <typename V>
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float*) {
    uint16_t highs;
    uint32_t lows;
    std::memcpy(&highs, block + 2, sizeof highs);
    std::memcpy(&lows, block + 4, sizeof lows);
    // Eight nibbles and eight pairs of bits, each spread over the bytes of a word.
    uint64_t nibbles = (lows | static_cast<uint64_t>(lows) << 16) & 0x0000ffff0000ffffu;
    nibbles = (nibbles | nibbles << 8) & 0x00ff00ff00ff00ffu;
    nibbles = (nibbles | nibbles << 4) & 0x0f0f0f0f0f0f0f0fu;
    uint64_t pairs = (highs | static_cast<uint64_t>(highs) << 24) & 0x000000ff000000ffu;
    pairs = (pairs | pairs << 12) & 0x000f000f000f000fu;
    pairs = (pairs | pairs << 6) & 0x0303030303030303u;
    using TwoWords = uint64_t __attribute__((vector_size(16)));
    const HalfBytes bytes = (HalfBytes)(TwoWords{nibbles | pairs << 4, 0}) - static_cast<int8_t>(32);
    ScaleBytes<V>(bytes, HalfAt(block), scales);
  }
  static GroupBytes Values(const std::byte* block, int64_t group) {
    return UnevenValues(kUnevenValues, block + 8 + group * 16);
  }
};

// Calls visit.template operator()<Format>() for a quantised type.
template <typename Visit>
void WithFormat(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kQ4_0: return visit.template operator()<NibbleBlock<false, false>>();
    case DType::kQ4_1: return visit.template operator()<NibbleBlock<false, true>>();
    case DType::kQ5_0: return visit.template operator()<NibbleBlock<true, false>>();
    case DType::kQ5_1: return visit.template operator()<NibbleBlock<true, true>>();
    case DType::kQ8_0: return visit.template operator()<Q8Block>();
    case DType::kQ2_K: return visit.template operator()<Q2KBlock>();
    case DType::kQ3_K: return visit.template operator()<Q3KBlock>();
    case DType::kQ4_K: return visit.template operator()<Q4KOrQ5KBlock<false>>();
    case DType::kQ5_K: return visit.template operator()<Q4KOrQ5KBlock<true>>();
    case DType::kQ6_K: return visit.template operator()<Q6KBlock>();
    case DType::kIQ4_NL: return visit.template operator()<Iq4NlBlock>();
    case DType::kIQ4_XS: return visit.template operator()<Iq4XsBlock>();
    case DType::kMXFP4: return visit.template operator()<MxFp4Block>();
    default: return;
  }
}

// Writes 32 numbers.
template <typename V>
inline void WidenGroup(const GroupBytes& values, float first_scale, float second_scale, float first_offset,
                       float second_offset, float* out) {
#pragma GCC unroll 8
  for (int i = 0; i < kGroup / V::kWidth; ++i) {
    const bool first = i * V::kWidth < kGroup / 2;
    const HalfBytes half = HalfGroupAt(reinterpret_cast<const char*>(&values) + (first ? 0 : kGroup / 2));
    V::Store(out + i * V::kWidth, V::MultiplyAdd(V::FromBytes(half, i % (kSixteen / V::kWidth)),
                                                 V::Broadcast(first ? first_scale : second_scale),
                                                 V::Broadcast(first ? first_offset : second_offset)));
  }
}

// Elements first to first + count of a row of blocks, multiples of kGroup.
template <typename V>
void Dequantise(const std::byte* row, DType dtype, int64_t first, int64_t count, float* out) {
  WithFormat(dtype, [&]<typename Format>() {
    const int64_t end = (first + count) / kGroup;
    int64_t group = first / kGroup;
    if constexpr (Format::kGroups == 1) {
      for (; group < end; ++group, out += kGroup) {
        const std::byte* const block = row + group * Format::kBytes;
        const float scale = Format::Scale(block), offset = Format::kOffset ? Format::Offset(block) : 0;
        WidenGroup<V>(Format::Values(block), scale, scale, offset, offset, out);
      }
    } else {
      while (group < end) {
        const std::byte* const block = row + group / Format::kGroups * Format::kBytes;
        const int64_t stop = std::min(end, (group / Format::kGroups + 1) * Format::kGroups);
        alignas(64) float scales[kSixteen], offsets[kSixteen] = {};
        Format::template Scales<V>(block, scales, offsets);
        for (; group < stop; ++group, out += kGroup) {
          const int64_t at = group % Format::kGroups * Format::kHalves, second = at + Format::kHalves - 1;
          WidenGroup<V>(Format::Values(block, group % Format::kGroups), scales[at], scales[second], offsets[at],
                        offsets[second], out);
        }
      }
    }
  });
}

// A row of x, rounded. Blocks of 256 numbers find what belongs to their groups and halves of groups side by side.
struct PreparedGroups {
  int16_t* integers;  // (k)
  float* units;       // (k / 32), u
  float* sums;        // (k / 32), u times the sum of the integers
  float* half_units;  // (k / 16), u once for each half
  float* half_sums;   // (k / 16)

  // In memory of Bytes(k), 64-byte aligned.
  PreparedGroups(std::byte* memory, int64_t k)
      : integers(reinterpret_cast<int16_t*>(memory)),
        units(reinterpret_cast<float*>(memory + Aligned(k * 2))),
        sums(units + Padded(k)),
        half_units(sums + Padded(k)),
        half_sums(half_units + 2 * Padded(k)) {}
  static int64_t Bytes(int64_t k) { return Aligned(k * 2) + 6 * Padded(k) * static_cast<int64_t>(sizeof(float)); }

 private:
  static int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  // Vectors of 16 floats may be read from each block's eight groups on.
  static int64_t Padded(int64_t k) { return (k / kGroup + 31) / 16 * 16; }
};

inline int64_t PreparedBytes(int64_t k) { return PreparedGroups::Bytes(k); }

template <typename V>
void PrepareGroups(const float* x, int64_t k, std::byte* memory) {
  const PreparedGroups out(memory, k);
  constexpr int kLanes = 8;  // which the compiler makes vectors of
  for (int64_t group = 0; group < k / kGroup; ++group) {
    const float* const from = x + group * kGroup;
    float largest[kLanes] = {}, zeros[kLanes] = {};
    for (int i = 0; i < kGroup; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float size = std::abs(from[i + lane]);
        largest[lane] = size > largest[lane] ? size : largest[lane];
        zeros[lane] += from[i + lane] * 0;  // NaN if the number is not finite, and so are the products then
      }
    }
    float most = 0, zero = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      most = std::max(most, largest[lane]);
      zero += zeros[lane];
    }
    const float unit = most / 32767 + zero, inverse = most > 0 ? 32767 / most : 0;
    int32_t integers[kGroup], halves[2] = {};
    for (int i = 0; i < kGroup; ++i) {
      // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits of the mantissa.
      const float shifted = from[i] * inverse + 12582912.0f;
      std::memcpy(&integers[i], &shifted, sizeof shifted);
      integers[i] -= 0x4b400000;
    }
    for (int i = 0; i < kGroup / 2; ++i) halves[0] += integers[i];
    for (int i = kGroup / 2; i < kGroup; ++i) halves[1] += integers[i];
    for (int i = 0; i < kGroup; ++i) out.integers[group * kGroup + i] = static_cast<int16_t>(integers[i]);
    out.units[group] = unit;
    out.sums[group] = unit * static_cast<float>(halves[0] + halves[1]);
    for (int half = 0; half < 2; ++half) {
      out.half_units[2 * group + half] = unit;
      out.half_sums[2 * group + half] = unit * static_cast<float>(halves[half]);
    }
  }
}

// Dot products of one row of blocks with M prepared rows of x.
template <typename V, typename Format, int M>
inline void QuantisedDots(const std::byte* prepared, int64_t prepared_bytes, const std::byte* w, int64_t k,
                          float* out) {
  constexpr int kSums = 2;  // which hide the latency of the additions
  typename V::Reg sum[M][kSums];
  float offset[M] = {};
  typename V::Reg offsets_sum[M];
  for (int i = 0; i < M; ++i) {
    offsets_sum[i] = V::Zero();
    for (int s = 0; s < kSums; ++s) sum[i][s] = V::Zero();
  }
  const auto row = [&](int i) { return PreparedGroups(const_cast<std::byte*>(prepared) + i * prepared_bytes, k); };
  if constexpr (Format::kGroups == 1) {
    const int64_t groups = k / kGroup;
    const auto add = [&](int64_t group, int which) __attribute__((always_inline)) {
      const std::byte* const block = w + group * Format::kBytes;
      const GroupBytes values = Format::Values(block);
      const float scale = Format::Scale(block);
#pragma GCC unroll 4
      for (int i = 0; i < M; ++i) {
        const PreparedGroups x = row(i);
        const float by = scale * x.units[group];
        V::template AddDots<1>(values, x.integers + group * kGroup, &by, 0, sum[i][which]);
        if constexpr (Format::kOffset) offset[i] += Format::Offset(block) * x.sums[group];
      }
    };
    int64_t group = 0;
    for (; group + kSums <= groups; group += kSums) {
      for (int64_t line = 0; line < kSums * Format::kBytes; line += kQuantisedLine)
        __builtin_prefetch(w + group * Format::kBytes + kQuantisedAhead + line);
#pragma GCC unroll 4
      for (int s = 0; s < kSums; ++s) add(group + s, s);
    }
    for (; group < groups; ++group) add(group, 0);
  } else {
    for (int64_t block = 0; block < k / (kGroup * kGroupsOfBlock); ++block, w += Format::kBytes) {
      for (int64_t line = 0; line < Format::kBytes; line += kQuantisedLine)
        __builtin_prefetch(w + kQuantisedAhead + line);
      alignas(64) float scales[kSixteen], offsets[kSixteen], by[M][kSixteen];
      Format::template Scales<V>(w, scales, offsets);
      constexpr int kCount = static_cast<int>(kGroupsOfBlock) * Format::kHalves;
      for (int i = 0; i < M; ++i) {
        const PreparedGroups x = row(i);
        const float* const units = (Format::kHalves == 2 ? x.half_units : x.units) + block * kCount;
        const float* const sums = (Format::kHalves == 2 ? x.half_sums : x.sums) + block * kCount;
#pragma GCC unroll 4
        for (int at = 0; at < kCount; at += V::kWidth) {
          V::Store(by[i] + at, V::Load(scales + at) * V::Load(units + at));
          if constexpr (Format::kOffset) {
            const typename V::Reg products = V::Load(offsets + at) * V::Load(sums + at);
            offsets_sum[i] = V::Add(offsets_sum[i], kCount < V::kWidth ? V::FirstEight(products) : products);
          }
        }
      }
#pragma GCC unroll 8
      for (int group = 0; group < kGroupsOfBlock; ++group) {
        const GroupBytes values = Format::Values(w, group);
        const int at = group * Format::kHalves;
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i)
          V::template AddDots<Format::kHalves>(values, row(i).integers + (block * kGroupsOfBlock + group) * kGroup,
                                               by[i], at, sum[i][group % kSums]);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int s = 0; s < kSums; ++s) offsets_sum[i] = V::Add(offsets_sum[i], sum[i][s]);
    out[i] = V::Sum(offsets_sum[i]) + offset[i];
  }
}

}  // namespace
}  // namespace shiftrt
