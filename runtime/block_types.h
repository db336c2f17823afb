// SPDX-License-Identifier: Apache-2.0
// The types in which model files store the elements of a tensor: plain floating-point numbers, and GGUF's blocks of
// quantised numbers with scales of their own.
//
// Source of the formats: ggml's ggml-common.h (the block_* structures) and the Python package gguf (quants.py), with
// whose `dequantize` Decode() agrees bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/dtype.h"

namespace shiftrt {

// The numbers are those of GGUF files. Types that a file may contain but that cannot be decoded here have a row in the
// table of FindBlockType() only.
enum class BlockType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

struct BlockTraits {
  uint32_t code;     // in GGUF files
  const char* name;  // as llama.cpp prints it: "Q4_K"
  int64_t elements;  // per block; a row of a tensor has whole blocks
  int64_t bytes;     // per block
  // Converts `blocks` blocks to elements * blocks float32 numbers. Null: this type cannot be decoded.
  void (*decode)(const std::byte* data, int64_t blocks, float* out);
};

// Null for a code that is not in the table.
const BlockTraits* FindBlockType(uint32_t code);
const BlockTraits& TraitsOf(BlockType type);

BlockType BlockTypeOf(DType type);  // throws Error for float64
// The same type in memory.
DType DTypeOfBlocks(BlockType type);
// The type of the elements if they are stored one by one; empty for quantised types.
std::optional<DType> PlainType(BlockType type);
// Converts `elements` numbers, which are whole blocks, to float32. Throws Error for float64.
void Widen(DType type, const void* data, int64_t elements, float* out);

// The names of all types that can be decoded, for messages: "F32, F16, ...".
const char* DecodableTypes();

}  // namespace shiftrt
