// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and the two 16-bit floating-point formats as plain values.
//
// The quantised types are blocks of numbers with scales of their own, as GGUF files have them (runtime/block_types.h
// decodes them). Products, embeddings and whatever copies a tensor to float32 read them; nothing writes them here.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace shiftrt {

enum class DType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4
};

// The layout of a type in memory. A row of a tensor has whole blocks; a block of a plain type is one element.
struct TypeLayout {
  const char* name;  // "float32", or as llama.cpp prints it: "Q4_K"
  int64_t elements;  // per block
  int64_t bytes;     // per block
};
constexpr TypeLayout LayoutOf(DType type) {
  switch (type) {
    case DType::kFloat32: return {"float32", 1, 4};
    case DType::kFloat16: return {"float16", 1, 2};
    case DType::kBFloat16: return {"bfloat16", 1, 2};
    case DType::kFloat64: return {"float64", 1, 8};
    case DType::kQ4_0: return {"Q4_0", 32, 18};
    case DType::kQ4_1: return {"Q4_1", 32, 20};
    case DType::kQ5_0: return {"Q5_0", 32, 22};
    case DType::kQ5_1: return {"Q5_1", 32, 24};
    case DType::kQ8_0: return {"Q8_0", 32, 34};
    case DType::kQ2_K: return {"Q2_K", 256, 84};
    case DType::kQ3_K: return {"Q3_K", 256, 110};
    case DType::kQ4_K: return {"Q4_K", 256, 144};
    case DType::kQ5_K: return {"Q5_K", 256, 176};
    case DType::kQ6_K: return {"Q6_K", 256, 210};
    case DType::kIQ4_NL: return {"IQ4_NL", 32, 18};
    case DType::kIQ4_XS: return {"IQ4_XS", 256, 136};
    case DType::kMXFP4: return {"MXFP4", 32, 17};
  }
  return {"?", 1, 1};
}
constexpr const char* Name(DType type) { return LayoutOf(type).name; }
// Returns true for blocks of quantised numbers.
constexpr bool IsQuantised(DType type) { return LayoutOf(type).elements > 1; }
// The type that takes its place where numbers are stored one by one: bfloat16 for a quantised type, else itself.
constexpr DType ExpandedType(DType type) { return IsQuantised(type) ? DType::kBFloat16 : type; }
// Bytes of an element, or of a block of a quantised type.
constexpr size_t SizeOf(DType type) { return static_cast<size_t>(LayoutOf(type).bytes); }
// Bytes of whole blocks that hold `elements` numbers.
constexpr int64_t BytesOf(DType type, int64_t elements) {
  return elements / LayoutOf(type).elements * LayoutOf(type).bytes;
}

// Brain floating point: the upper half of a float32.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  // Rounds to nearest, ties to even; NaN stays NaN.
  explicit BFloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE 754 binary16.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  // Rounds to nearest, ties to even; overflow gives infinity.
  explicit Float16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits = static_cast<uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
      bits = static_cast<uint16_t>(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {  // subnormal: let float32 addition do the rounding
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    } else {
      const uint32_t rounded = magnitude + 0xc8000000u + 0xfffu + ((magnitude >> 13) & 1u);
      bits = static_cast<uint16_t>(sign | (rounded >> 13));
    }
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u,
                   mantissa = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kFloat16;
};

}  // namespace shiftrt
