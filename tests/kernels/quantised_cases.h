// SPDX-License-Identifier: Apache-2.0
// Matrices of quantised blocks. The blocks are random bytes with random scales, so that every bit of a format is read;
// what they stand for is runtime/block_types.h's, which agrees with the Python package gguf.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "runtime/block_types.h"
#include "runtime/tensor.h"

namespace shiftrt::test {

// The bytes of a block at which its scales of 16 bits are.
inline std::vector<int64_t> ScalesOf(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return {0, 2};
    case DType::kQ2_K: return {80, 82};
    case DType::kQ3_K: return {108};
    case DType::kQ6_K: return {208};
    default: return {0};
  }
}

// A matrix at an odd address, as a mapped file may have it, and its elements.
class Quantised {
 public:
  Quantised(DType type, int64_t rows, int64_t cols, uint64_t seed)
      : bytes_(BytesOf(type, rows * cols) + 1), values(rows * cols) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
    for (int64_t block = 0; block < std::ssize(values) / LayoutOf(type).elements; ++block)
      for (const int64_t at : ScalesOf(type)) {
        if (type == DType::kMXFP4) {  // powers of two about 2^-7
          bytes_[1 + block * LayoutOf(type).bytes] = static_cast<std::byte>(117 + random() % 8);
          continue;
        }
        const Float16 scale(static_cast<float>(static_cast<double>(random() % 4096) / 65536 - 1.0 / 64));
        std::memcpy(bytes_.data() + 1 + block * LayoutOf(type).bytes + at, &scale, sizeof scale);
      }
    view = {bytes_.data() + 1, type, {rows, cols}};
    Widen(type, view.data, std::ssize(values), values.data());
  }

  // The amounts by which weights change if their numbers go up by one: a block with all bits of its numbers is compared
  // with one that has none. `range` is the largest of these numbers, `quants` the bytes of a block that hold them.
  std::vector<float> Units(const std::vector<std::pair<int64_t, int64_t>>& quants, int range) const {
    std::vector<float> none, all;
    for (const auto& [bits, out] : {std::pair{0x00, &none}, {0xff, &all}}) {
      std::vector<std::byte> changed(bytes_.begin() + 1, bytes_.end());
      for (int64_t at = 0; at < std::ssize(changed); at += LayoutOf(view.dtype).bytes)
        for (const auto& [first, count] : quants)
          std::fill_n(changed.begin() + at + first, count, static_cast<std::byte>(bits));
      out->resize(values.size());
      Widen(view.dtype, changed.data(), std::ssize(values), out->data());
    }
    for (size_t i = 0; i < all.size(); ++i) all[i] = (all[i] - none[i]) / static_cast<float>(range);
    return all;
  }

 private:
  std::vector<std::byte> bytes_;

 public:
  TensorView view;
  std::vector<float> values;
};

}  // namespace shiftrt::test
