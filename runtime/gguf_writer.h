// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files, version 3, with data aligned to 32 bytes, which runtime/gguf.h reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/block_types.h"
#include "runtime/gguf.h"

namespace shiftrt {

// Builds a file's header. The caller writes header() and then, for each tensor in the order of AddTensor(), its bytes
// and the zeros of Padding().
class GgufWriter {
 public:
  void AddInteger(std::string_view key, int64_t value);  // as uint32, which other programs expect for sizes
  void AddNumber(std::string_view key, double value);    // as float32
  void AddFlag(std::string_view key, bool value);
  void AddText(std::string_view key, std::string_view value);
  void AddFlags(std::string_view key, const std::vector<bool>& values);
  void AddIntegers(std::string_view key, const std::vector<int32_t>& values);
  void AddNumbers(std::string_view key, const std::vector<float>& values);
  void AddTexts(std::string_view key, const std::vector<std::string>& values);
  void AddCopy(std::string_view key, const GgufValue& value);  // from another file

  // Adds a tensor; `shape` has the outermost side first. The type must have an encoder: CanEncode(type, the last side).
  void AddTensor(const std::string& name, const std::vector<int64_t>& shape, BlockType type);

  std::string header() const;
  // The zeros between a tensor of `bytes` bytes and the next tensor.
  static std::string Padding(int64_t bytes);

 private:
  template <typename T>
  void Add(std::string_view key, GgufKind kind, T value);
  void BeginArray(std::string_view key, GgufKind kind, size_t count);

  std::string values_, tensors_;
  uint64_t value_count_ = 0, tensor_count_ = 0, data_ = 0;
};

// True if EncodeBlocks can write rows of so many elements: F32, F16, BF16, and Q8_0 for multiples of 32.
bool CanEncode(BlockType type, int64_t row);
// Writes `count` float32 numbers, a whole number of blocks, as blocks of `type`. Q8_0 has the bits of ggml's reference
// (quantize_row_q8_0_ref) and of the Python package gguf. `finite` is set to false if a number, or the scale of a
// block, is not finite in the type.
void EncodeBlocks(BlockType type, const float* values, int64_t count, std::byte* out, bool& finite);

}  // namespace shiftrt
