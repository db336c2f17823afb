// SPDX-License-Identifier: Apache-2.0
// The formats of quantised blocks, and their conversion to float32, for SimdBody. Everything is in an anonymous
// namespace on purpose, as in simd_body_impl.h.
//
// Every format is read in groups of 32 numbers: signed bytes q, and for the group or each of its halves a scale s and
// an offset o. A number is s q + o. All scales are exact in float32, and so are the products of scale and byte, so that
// Dequantise() gives the bits that runtime/block_types.h gives.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/eight_lanes.h"
#include "kernels/cpu/simd_body.h"

#if defined(__F16C__) || defined(__SSSE3__)
#include <immintrin.h>
#endif

namespace shiftrt {
namespace {

constexpr int64_t kGroup = 32, kGroupsOfBlock = 8;  // numbers; groups of the formats with blocks of 256
constexpr int kSixteen = 16;                        // halves of groups of such a block
// Bytes by which weights are prefetched: beyond the page, at which the prefetchers of a CPU stop.
constexpr int64_t kQuantisedAhead = 8192;
using GroupBytes = int8_t __attribute__((vector_size(kGroup)));  // signed
using GroupPairs = SixteenWords;
using HalfBytes = SixteenBytes;
using UnsignedHalf = uint8_t __attribute__((vector_size(kGroup / 2)));
using FourWords = uint32_t __attribute__((vector_size(kGroup / 2)));

inline float HalfAt(const std::byte* at) {
  Float16 value;
  std::memcpy(&value.bits, at, sizeof value.bits);
#if defined(__F16C__)
  return _cvtsh_ss(value.bits);
#else
  return static_cast<float>(value);
#endif
}

// Four numbers of 16 bits, each `stride` bytes after the one before it.
inline FourFloats FourHalves(const std::byte* at, int64_t stride) {
#if defined(__F16C__)
  uint64_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= static_cast<uint64_t>(LoadAs<uint16_t>(at + i * stride)) << 16 * i;
  return (FourFloats)_mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<int64_t>(bits)));
#else
  return FourFloats{HalfAt(at), HalfAt(at + stride), HalfAt(at + 2 * stride), HalfAt(at + 3 * stride)};
#endif
}

inline GroupBytes GroupAt(const std::byte* at) { return LoadAs<GroupBytes>(at); }
inline HalfBytes HalfGroupAt(const void* at) { return LoadAs<HalfBytes>(at); }

inline GroupBytes Joined(HalfBytes first, HalfBytes second) {
  return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
                                 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

// For each byte, eight bytes that are 16 where it has a bit.
constexpr std::array<uint64_t, 256> kFifthBits = [] {
  std::array<uint64_t, 256> table{};
  for (uint64_t byte = 0; byte < 256; ++byte)
    for (int bit = 0; bit < 8; ++bit) table[byte] |= (byte >> bit & 1) << (8 * bit + 4);
  return table;
}();

// to[i] = by from[i] for the first kCount of 16 signed bytes, 8 or 16.
template <int kCount>
inline void ScaleBytes(const HalfBytes& from, float by, float* to) {
  const EightFloats first = FloatsOf<0>(from) * by;
  std::memcpy(to, &first, sizeof first);
  if constexpr (kCount == kSixteen) {
    const EightFloats second = FloatsOf<1>(from) * by;
    std::memcpy(to + 8, &second, sizeof second);
  }
}

// The bytes of a group as words: the even ones, and those after each of them.
struct WordPair {
  GroupPairs even, odd;
};
inline WordPair WordsOf(GroupBytes unsigned_bytes) {
  const auto pairs = (GroupPairs)unsigned_bytes;
  return {pairs & 255, pairs >> 8};
}

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

// The values of nibbles that are not evenly spaced, as in runtime/block_types.cc, plus kZero of their formats.
using SixteenNumbers = std::array<uint8_t, 16>;
constexpr SixteenNumbers kUnevenNumbers = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr SixteenNumbers kMxNumbers = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// The bytes of a block from byte `at` on, for the 32 elements of a group in their order.
struct BlockBytes {
  const std::byte* block;

  // The bits of each byte `left` places further left, or right if it is negative, as far as `mask` has them.
  GroupBytes Bits(int8_t mask, int64_t at, int64_t left) const {
    const auto pairs = (GroupPairs)GroupAt(block + at);  // bits of the other byte of a pair are masked
    return (GroupBytes)(left < 0 ? pairs >> static_cast<int>(-left) : pairs << static_cast<int>(left)) & mask;
  }
  // Signed bytes plus 128.
  GroupBytes Raised(int64_t at) const { return GroupAt(block + at) ^ static_cast<int8_t>(-128); }
  // The lower nibbles of 16 bytes, then the upper ones.
  GroupBytes Nibbles(int64_t at) const {
    const HalfBytes nibbles = HalfGroupAt(block + at);
    using EightWords = uint32_t __attribute__((vector_size(kGroup)));
    const EightWords shifted = (EightWords)Joined(nibbles, nibbles) >> EightWords{0, 0, 0, 0, 4, 4, 4, 4};
    return (GroupBytes)shifted & static_cast<int8_t>(15);
  }
  // The numbers of the nibbles.
  GroupBytes NumbersOf(const SixteenNumbers& numbers, int64_t at) const {
    GroupBytes found = Nibbles(at);
#if defined(__AVX2__)
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers.data()));
    found = (GroupBytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)found);
#else
    for (int i = 0; i < kGroup; ++i) found[i] = static_cast<int8_t>(numbers[found[i]]);
#endif
    return found;
  }
  // 16 for each bit of four bytes that is set, else 0.
  GroupBytes FifthBits(int64_t at) const { return shiftrt::FifthBits(block + at); }
};

// Numbers() of a format are the unsigned bytes of a group, before kZero is subtracted: unsigned ones become words by
// fewer instructions. They are read through Bytes: BlockBytes, or another type with its members. The numbers of a whole
// block are in kWords words of 4 bytes from byte kFrom on.
//
// First come the formats with blocks of one group, whose number is 0. FourScales() are the scales of four blocks.

template <bool kFive, bool kMinimum>
struct NibbleBlock {
  static constexpr int64_t kGroups = 1, kScales = kMinimum ? 4 : 2, kHigh = kFive ? 4 : 0;
  static constexpr int64_t kBytes = kScales + kHigh + 16;
  static constexpr bool kOffset = kMinimum;
  static constexpr int kZero = kMinimum ? 0 : kFive ? 16 : 8;
  static constexpr int kFrom = kScales, kWords = kFive ? 5 : 4;

  static float Scale(const std::byte* block) { return HalfAt(block); }
  static FourFloats FourScales(const std::byte* blocks) { return FourHalves(blocks, kBytes); }
  static float Offset(const std::byte* block) { return HalfAt(block + 2); }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t) {
    const auto nibbles = block.Nibbles(kScales + kHigh);
    if constexpr (kFive)
      return nibbles | block.FifthBits(kScales);
    else
      return nibbles;
  }
};

struct Q8Block {
  static constexpr int64_t kGroups = 1, kBytes = 34;
  static constexpr bool kOffset = false;
  static constexpr int kZero = 128, kFrom = 2, kWords = 8;
  static float Scale(const std::byte* block) { return HalfAt(block); }
  static FourFloats FourScales(const std::byte* blocks) { return FourHalves(blocks, kBytes); }
  static float Offset(const std::byte*) { return 0; }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t) {
    return block.Raised(2);
  }
};

struct Iq4NlBlock {
  static constexpr int64_t kGroups = 1, kBytes = 18;
  static constexpr bool kOffset = false;
  static constexpr int kZero = 128, kFrom = 2, kWords = 4;
  static float Scale(const std::byte* block) { return HalfAt(block); }
  static FourFloats FourScales(const std::byte* blocks) { return FourHalves(blocks, kBytes); }
  static float Offset(const std::byte*) { return 0; }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t) {
    return block.NumbersOf(kUnevenNumbers, 2);
  }
};

struct MxFp4Block {
  static constexpr int64_t kGroups = 1, kBytes = 17;
  static constexpr bool kOffset = false;
  static constexpr int kZero = 12, kFrom = 1, kWords = 4;
  static float Scale(const std::byte* block) {
    const auto exponent = static_cast<uint32_t>(block[0]);
    const uint32_t bits = exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return scale;
  }
  static FourFloats FourScales(const std::byte* blocks) {
    return FourFloats{Scale(blocks), Scale(blocks + kBytes), Scale(blocks + 2 * kBytes), Scale(blocks + 3 * kBytes)};
  }
  static float Offset(const std::byte*) { return 0; }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t) {
    return block.NumbersOf(kMxNumbers, 1);
  }
};

// Formats with blocks of eight groups. Scales() writes the scales of the groups, or of their halves if kHalves is 2,
// and the offsets of as many to `offsets` if the format has them. A call of it would cost a third of a product of four
// rows. Words(), where a format has them, are Numbers() times 1 / kFactors.

// A block of eight groups without offsets or a zero.
struct PlainBlock {
  static constexpr int64_t kGroups = kGroupsOfBlock;
  static constexpr bool kOffset = false;
  static constexpr int kZero = 0;
};

struct Q2KBlock : PlainBlock {
  static constexpr int64_t kBytes = 84;
  static constexpr int kHalves = 2, kFrom = 16, kWords = 16;
  static constexpr bool kOffset = true;
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float* offsets) {
    const UnsignedHalf bytes = (UnsignedHalf)HalfGroupAt(block);
    ScaleBytes<kSixteen>((HalfBytes)(bytes & 15), HalfAt(block + 80), scales);
    ScaleBytes<kSixteen>((HalfBytes)(bytes >> 4), -HalfAt(block + 82), offsets);
  }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t group) {
    return block.Bits(3, 16 + group / 4 * 32, -group % 4 * 2);
  }
};

struct Q3KBlock : PlainBlock {
  static constexpr int64_t kBytes = 110;
  static constexpr int kHalves = 2, kFrom = 0, kWords = 24;
  static constexpr int kZero = 4;
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float*) {
    uint32_t words[3];
    std::memcpy(words, block + 96, sizeof words);
    const FourWords low = {words[0], words[1], words[0] >> 4, words[1] >> 4};
    const FourWords high = {words[2], words[2] >> 2, words[2] >> 4, words[2] >> 6};
    const FourWords joined = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
    ScaleBytes<kSixteen>((HalfBytes)joined - static_cast<int8_t>(32), HalfAt(block + 108), scales);
  }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t group) {
    return block.Bits(3, 32 + group / 4 * 32, -group % 4 * 2) | block.Bits(4, 0, 2 - group);
  }
};

template <bool kFive>
struct Q4KOrQ5KBlock : PlainBlock {
  static constexpr int64_t kBytes = kFive ? 176 : 144;
  static constexpr int kHalves = 1, kFrom = 16, kWords = kFive ? 40 : 32;
  static constexpr bool kOffset = true;
  // Eight scales and eight minimums of six bits each, in 12 bytes after the two numbers that multiply them.
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float* offsets) {
    const auto words = LoadAs<FourWords>(block);
    const FourWords low = __builtin_shufflevector(words, words, 1, 3, 2, 3) >> FourWords{0, 0, 0, 4};
    const FourWords high = __builtin_shufflevector(words, words, 1, 1, 1, 2) >> 2;
    const auto bytes = (HalfBytes)((low & FourWords{0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f}) |
                                   (high & FourWords{0, 0x30303030, 0, 0x30303030}));
    ScaleBytes<8>(bytes, HalfAt(block), scales);
    ScaleBytes<8>(__builtin_shufflevector(bytes, bytes, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7),
                  -HalfAt(block + 2), offsets);
  }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t group) {
    const auto nibbles = block.Bits(15, (kFive ? 48 : 16) + group / 2 * 32, -group % 2 * 4);
    if constexpr (kFive)
      return nibbles | block.Bits(16, 16, 4 - group);
    else
      return nibbles;
  }
};

struct Q4KBlock : Q4KOrQ5KBlock<false> {
  // The upper nibble stays where it is.
  static constexpr EightFloats kFactors = {1, 1.0f / 16, 1, 1.0f / 16, 1, 1.0f / 16, 1, 1.0f / 16};
  static WordPair Words(const std::byte* block, int64_t group) {
    const auto pairs = (GroupPairs)GroupAt(block + 16 + group / 2 * 32);
    const uint16_t mask = group % 2 == 0 ? 0x0f : 0xf0;
    return {pairs & mask, pairs >> 8 & mask};
  }
};
using Q5KBlock = Q4KOrQ5KBlock<true>;

struct Q6KBlock : PlainBlock {
  static constexpr int64_t kBytes = 210;
  static constexpr int kHalves = 2, kFrom = 0, kWords = 48;
  static constexpr int kZero = 32;
  [[gnu::always_inline]] static void Scales(const std::byte* block, float* scales, float*) {
    ScaleBytes<kSixteen>(HalfGroupAt(block + 192), HalfAt(block + 208), scales);
  }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t group) {
    return block.Bits(15, group / 4 * 64 + group % 2 * 32, -group % 4 / 2 * 4) |
           block.Bits(48, 128 + group / 4 * 32, 4 - group % 4 * 2);
  }
};

struct Iq4XsBlock : PlainBlock {
  static constexpr int64_t kBytes = 136;
  static constexpr int kHalves = 1, kFrom = 8, kWords = 32;
  static constexpr int kZero = 128;
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
    ScaleBytes<8>(bytes, HalfAt(block), scales);
  }
  template <typename Bytes>
  static auto Numbers(const Bytes& block, int64_t group) {
    return block.NumbersOf(kUnevenNumbers, 8 + group * 16);
  }
};

// The numbers of a group, before Format::kZero is subtracted.
template <typename Format>
inline GroupBytes NumbersIn(const std::byte* block, int64_t group) {
  return Format::Numbers(BlockBytes{block}, group);
}

// The bytes of a group of a block, signed.
template <typename Format>
inline GroupBytes ValuesOf(const std::byte* block, int64_t group) {
  using UnsignedBytes = uint8_t __attribute__((vector_size(kGroup)));
  const GroupBytes numbers = NumbersIn<Format>(block, group);
  return (GroupBytes)((UnsignedBytes)numbers - static_cast<uint8_t>(Format::kZero));
}

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
    case DType::kQ4_K: return visit.template operator()<Q4KBlock>();
    case DType::kQ5_K: return visit.template operator()<Q5KBlock>();
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
        WidenGroup<V>(ValuesOf<Format>(block, 0), scale, scale, offset, offset, out);
      }
    } else {
      while (group < end) {
        const std::byte* const block = row + group / Format::kGroups * Format::kBytes;
        const int64_t stop = std::min(end, (group / Format::kGroups + 1) * Format::kGroups);
        alignas(64) float scales[kSixteen], offsets[kSixteen] = {};
        Format::Scales(block, scales, offsets);
        for (; group < stop; ++group, out += kGroup) {
          const int64_t at = group % Format::kGroups * Format::kHalves, second = at + Format::kHalves - 1;
          WidenGroup<V>(ValuesOf<Format>(block, group % Format::kGroups), scales[at], scales[second], offsets[at],
                        offsets[second], out);
        }
      }
    }
  });
}

}  // namespace
}  // namespace shiftrt
