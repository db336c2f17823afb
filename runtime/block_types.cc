// SPDX-License-Identifier: Apache-2.0
// This file is compiled without contraction to fused multiply-adds, so that the results are those of numpy on every
// machine.
#include "runtime/block_types.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/check.h"

namespace shiftrt {

namespace {

// Blocks are read byte by byte, because a file may put them at any address.
uint8_t Byte(const std::byte* data, int64_t i) { return static_cast<uint8_t>(data[i]); }

float Half(const std::byte* data) {
  Float16 value;
  std::memcpy(&value.bits, data, sizeof(value.bits));
  return static_cast<float>(value);
}

template <typename T>
struct Plain {
  static constexpr int64_t kElements = 1, kBytes = sizeof(T);
  static void Decode(const std::byte* block, float* out) {
    T value;
    std::memcpy(static_cast<void*>(&value), block, sizeof(T));
    *out = static_cast<float>(value);
  }
};

// Decodes nibbles, with a fifth bit per element if kFive, times a scale. With kMinimum a minimum is added; otherwise
// the range is centred on zero.
template <bool kFive, bool kMinimum>
struct Nibbles {
  static constexpr int64_t kElements = 32, kScales = kMinimum ? 4 : 2, kHigh = kFive ? 4 : 0;
  static constexpr int64_t kBytes = kScales + kHigh + 16;
  static void Decode(const std::byte* block, float* out) {
    const float scale = Half(block), minimum = kMinimum ? Half(block + 2) : 0;
    const std::byte* const nibbles = block + kScales + kHigh;
    uint32_t high = 0;
    if (kFive) std::memcpy(&high, block + kScales, sizeof(high));
    for (int i = 0; i < 32; ++i) {
      const int nibble = i < 16 ? Byte(nibbles, i) & 15 : Byte(nibbles, i - 16) >> 4;
      const int fifth = static_cast<int>(high >> i & 1) << 4, centre = kMinimum ? 0 : kFive ? 16 : 8;
      const float product = scale * static_cast<float>((nibble | fifth) - centre);
      out[i] = kMinimum ? product + minimum : product;
    }
  }
};

struct Q8 {
  static constexpr int64_t kElements = 32, kBytes = 34;
  static void Decode(const std::byte* block, float* out) {
    const float scale = Half(block);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(Byte(block, 2 + i))) * scale;
  }
};

// Super-blocks of 256 elements ("K"): 8 or 16 groups with quantised scales of their own.
constexpr int64_t kSuper = 256;

// Element i of two bits each. In each group of 32 bytes, the lowest bits of all bytes come first.
int TwoBits(const std::byte* data, int64_t i) { return Byte(data, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3; }
// Element i of one bit each, in the same order over all 32 bytes.
int OneBit(const std::byte* data, int64_t i) { return Byte(data, i % 32) >> (i / 32) & 1; }
// Element i of four bits each. In each group of 32 bytes, the low nibbles come first.
int FourBits(const std::byte* data, int64_t i) { return Byte(data, i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15; }

struct Q2K {
  static constexpr int64_t kElements = kSuper, kBytes = 84;
  static void Decode(const std::byte* block, float* out) {
    const std::byte *const scales = block, *const twos = block + 16;
    const float scale = Half(block + 80), minimum = Half(block + 82);
    for (int64_t group = 0; group < 16; ++group) {
      const float by = scale * static_cast<float>(Byte(scales, group) & 15);
      const float less = minimum * static_cast<float>(Byte(scales, group) >> 4);
      for (int64_t i = group * 16; i < group * 16 + 16; ++i) out[i] = by * static_cast<float>(TwoBits(twos, i)) - less;
    }
  }
};

struct Q3K {
  static constexpr int64_t kElements = kSuper, kBytes = 110;
  static void Decode(const std::byte* block, float* out) {
    const std::byte *const highs = block, *const twos = block + 32, *const scales = block + 96;
    const float scale = Half(block + 108);
    for (int64_t group = 0; group < 16; ++group) {
      const int low = Byte(scales, group % 8) >> (group / 8 * 4) & 15;
      const int high = Byte(scales, 8 + group % 4) >> (group / 4 * 2) & 3;
      const float by = scale * static_cast<float>((low | high << 4) - 32);
      for (int64_t i = group * 16; i < group * 16 + 16; ++i)
        out[i] = by * static_cast<float>(TwoBits(twos, i) - (OneBit(highs, i) ^ 1) * 4);
    }
  }
};

// The scales and minimums of the 8 groups of Q4_K and Q5_K, six bits each, in 12 bytes.
struct SixBitScales {
  std::array<int, 8> scales, minimums;

  explicit SixBitScales(const std::byte* data) {
    for (int64_t i = 0; i < 4; ++i) {
      scales[i] = Byte(data, i) & 63;
      minimums[i] = Byte(data, 4 + i) & 63;
      scales[4 + i] = (Byte(data, 8 + i) & 15) | (Byte(data, i) >> 2 & 48);
      minimums[4 + i] = Byte(data, 8 + i) >> 4 | (Byte(data, 4 + i) >> 2 & 48);
    }
  }
};

template <bool kFive>
struct Q4KOrQ5K {
  static constexpr int64_t kElements = kSuper, kBytes = kFive ? 176 : 144;
  static void Decode(const std::byte* block, float* out) {
    const float scale = Half(block), minimum = Half(block + 2);
    const SixBitScales groups(block + 4);
    const std::byte *const highs = block + 16, *const nibbles = block + (kFive ? 48 : 16);
    for (int64_t group = 0; group < 8; ++group) {
      const float by = scale * static_cast<float>(groups.scales[group]);
      const float less = minimum * static_cast<float>(groups.minimums[group]);
      for (int64_t i = group * 32; i < group * 32 + 32; ++i) {
        const int fifth = kFive ? OneBit(highs, i) << 4 : 0;
        out[i] = by * static_cast<float>(FourBits(nibbles, i) | fifth) - less;
      }
    }
  }
};

struct Q6K {
  static constexpr int64_t kElements = kSuper, kBytes = 210;
  static void Decode(const std::byte* block, float* out) {
    const std::byte *const nibbles = block, *const twos = block + 128, *const scales = block + 192;
    const float scale = Half(block + 208);
    for (int64_t group = 0; group < 16; ++group) {
      const float by = scale * static_cast<float>(static_cast<int8_t>(Byte(scales, group)));
      for (int64_t i = group * 16; i < group * 16 + 16; ++i) {
        const int low = Byte(nibbles, i / 128 * 64 + i % 64) >> (i / 64 % 2 * 4) & 15;
        out[i] = by * static_cast<float>((low | TwoBits(twos, i) << 4) - 32);
      }
    }
  }
};

// The values of nibbles that are not evenly spaced: IQ4_NL and IQ4_XS, and the doubled ones of MXFP4 (e2m1).
constexpr int8_t kUnevenValues[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxValues[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 32 nibbles, the low ones first, as numbers of `values` times `by`.
void DecodeUneven(const int8_t (&values)[16], float by, const std::byte* nibbles, float* out) {
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? Byte(nibbles, i) & 15 : Byte(nibbles, i - 16) >> 4;
    out[i] = by * static_cast<float>(values[nibble]);
  }
}

struct Iq4Nl {
  static constexpr int64_t kElements = 32, kBytes = 18;
  static void Decode(const std::byte* block, float* out) { DecodeUneven(kUnevenValues, Half(block), block + 2, out); }
};

struct Iq4Xs {
  static constexpr int64_t kElements = kSuper, kBytes = 136;
  static void Decode(const std::byte* block, float* out) {
    const float scale = Half(block);
    const int highs = Byte(block, 2) | Byte(block, 3) << 8;
    for (int64_t group = 0; group < 8; ++group) {
      const int low = Byte(block, 4 + group / 2) >> (group % 2 * 4) & 15, high = highs >> (2 * group) & 3;
      DecodeUneven(kUnevenValues, scale * static_cast<float>((low | high << 4) - 32), block + 8 + group * 16,
                   out + group * 32);
    }
  }
};

// The scale is half a power of two, e8m0, because the values are doubled.
struct MxFp4 {
  static constexpr int64_t kElements = 32, kBytes = 17;
  static void Decode(const std::byte* block, float* out) {
    const uint32_t exponent = Byte(block, 0);
    const float scale = std::bit_cast<float>(exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23);
    DecodeUneven(kMxValues, scale, block + 1, out);
  }
};

template <typename Format>
void DecodeAll(const std::byte* data, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i) Format::Decode(data + i * Format::kBytes, out + i * Format::kElements);
}

template <typename Format>
constexpr BlockTraits Row(BlockType type, const char* name) {
  return {static_cast<uint32_t>(type), name, Format::kElements, Format::kBytes, DecodeAll<Format>};
}

// The table has all types of ggml, because the size of a tensor is checked even if it is never decoded.
constexpr BlockTraits kTypes[] = {
    Row<Plain<float>>(BlockType::kF32, "F32"),
    Row<Plain<Float16>>(BlockType::kF16, "F16"),
    Row<Plain<BFloat16>>(BlockType::kBF16, "BF16"),
    Row<Q8>(BlockType::kQ8_0, "Q8_0"),
    Row<Nibbles<false, false>>(BlockType::kQ4_0, "Q4_0"),
    Row<Nibbles<false, true>>(BlockType::kQ4_1, "Q4_1"),
    Row<Nibbles<true, false>>(BlockType::kQ5_0, "Q5_0"),
    Row<Nibbles<true, true>>(BlockType::kQ5_1, "Q5_1"),
    Row<Q2K>(BlockType::kQ2_K, "Q2_K"),
    Row<Q3K>(BlockType::kQ3_K, "Q3_K"),
    Row<Q4KOrQ5K<false>>(BlockType::kQ4_K, "Q4_K"),
    Row<Q4KOrQ5K<true>>(BlockType::kQ5_K, "Q5_K"),
    Row<Q6K>(BlockType::kQ6_K, "Q6_K"),
    {9, "Q8_1", 32, 40, nullptr},
    {15, "Q8_K", 256, 292, nullptr},
    {16, "IQ2_XXS", 256, 66, nullptr},
    {17, "IQ2_XS", 256, 74, nullptr},
    {18, "IQ3_XXS", 256, 98, nullptr},
    {19, "IQ1_S", 256, 50, nullptr},
    Row<Iq4Nl>(BlockType::kIQ4_NL, "IQ4_NL"),
    {21, "IQ3_S", 256, 110, nullptr},
    {22, "IQ2_S", 256, 82, nullptr},
    Row<Iq4Xs>(BlockType::kIQ4_XS, "IQ4_XS"),
    {24, "I8", 1, 1, nullptr},
    {25, "I16", 1, 2, nullptr},
    {26, "I32", 1, 4, nullptr},
    {27, "I64", 1, 8, nullptr},
    {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 56, nullptr},
    {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},
    Row<MxFp4>(BlockType::kMXFP4, "MXFP4"),
};

// The types that can be decoded, by their names in files and in memory.
constexpr std::pair<BlockType, DType> kInMemory[] = {
    {BlockType::kF32, DType::kFloat32}, {BlockType::kF16, DType::kFloat16},   {BlockType::kBF16, DType::kBFloat16},
    {BlockType::kQ4_0, DType::kQ4_0},   {BlockType::kQ4_1, DType::kQ4_1},     {BlockType::kQ5_0, DType::kQ5_0},
    {BlockType::kQ5_1, DType::kQ5_1},   {BlockType::kQ8_0, DType::kQ8_0},     {BlockType::kQ2_K, DType::kQ2_K},
    {BlockType::kQ3_K, DType::kQ3_K},   {BlockType::kQ4_K, DType::kQ4_K},     {BlockType::kQ5_K, DType::kQ5_K},
    {BlockType::kQ6_K, DType::kQ6_K},   {BlockType::kIQ4_NL, DType::kIQ4_NL}, {BlockType::kIQ4_XS, DType::kIQ4_XS},
    {BlockType::kMXFP4, DType::kMXFP4}};

}  // namespace

const BlockTraits* FindBlockType(uint32_t code) {
  for (const BlockTraits& row : kTypes)
    if (row.code == code) return &row;
  return nullptr;
}

const BlockTraits& TraitsOf(BlockType type) { return *FindBlockType(static_cast<uint32_t>(type)); }

BlockType BlockTypeOf(DType type) {
  for (const auto& [blocks, in_memory] : kInMemory)
    if (in_memory == type) return blocks;
  Fail("a tensor of type {}, expected float32, float16, bfloat16 or a quantised type", Name(type));
}

DType DTypeOfBlocks(BlockType type) {
  for (const auto& [blocks, in_memory] : kInMemory)
    if (blocks == type) return in_memory;
  Fail("a tensor of type {}, which cannot be decoded", TraitsOf(type).name);
}

std::optional<DType> PlainType(BlockType type) {
  const bool plain = type == BlockType::kF32 || type == BlockType::kF16 || type == BlockType::kBF16;
  return plain ? std::optional(DTypeOfBlocks(type)) : std::nullopt;
}

void Widen(DType type, const void* data, int64_t elements, float* out) {
  const BlockTraits& traits = TraitsOf(BlockTypeOf(type));
  traits.decode(static_cast<const std::byte*>(data), elements / traits.elements, out);
}

const char* DecodableTypes() {
  static const std::string names = [] {
    std::string list;
    for (const BlockTraits& row : kTypes)
      if (row.decode != nullptr) list += (list.empty() ? "" : ", ") + std::string(row.name);
    return list;
  }();
  return names.c_str();
}

}  // namespace shiftrt
