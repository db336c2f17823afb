// SPDX-License-Identifier: Apache-2.0
// The tile operations of AMX in plain C++, with the roundings of the hardware. Source: Intel 64 and IA-32 Architectures
// Software Developer's Manual, volume 2, TILELOADD, TDPBF16PS and TILESTORED.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "runtime/dtype.h"

namespace shiftrt {
namespace {

// Eight tiles of 16 rows of 64 bytes.
class EmulatedTiles {
 public:
  template <int kTile>
  void Zero() {
    std::memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
  }
  // Loads 16 dense rows.
  template <int kTile>
  void Load(const void* from) {
    std::memcpy(tiles_[kTile], from, sizeof tiles_[kTile]);
  }
  // Rows of float32, `stride` elements apart.
  template <int kTile>
  void Store(float* to, int64_t stride) const {
    for (int i = 0; i < 16; ++i) std::memcpy(to + i * stride, tiles_[kTile][i], sizeof tiles_[kTile][i]);
  }
  // sum[i][j] += over k of a[i][2 k] b[k][2 j] + a[i][2 k + 1] b[k][2 j + 1] in float32, a and b in bfloat16. The sums
  // of even and of odd products are separate up to the end, subnormal operands and results count as 0, and every
  // multiplication is fused with its addition.
  template <int kSum, int kLeft, int kRight>
  void MultiplyAdd() {
    float right[16][2][16];  // [pair of k][odd][column]
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 16; ++j)
        for (int odd = 0; odd < 2; ++odd) right[k][odd][j] = Wide(kRight, k, 2 * j + odd);
    for (int i = 0; i < 16; ++i) {
      float parts[2][16] = {};
      for (int k = 0; k < 16; ++k) {
        for (int odd = 0; odd < 2; ++odd) {
          const float left = Wide(kLeft, i, 2 * k + odd);
          for (int j = 0; j < 16; ++j) parts[odd][j] = Fused(left, right[k][odd][j], parts[odd][j]);
        }
      }
      float sums[16];
      std::memcpy(sums, tiles_[kSum][i], sizeof sums);
      for (int j = 0; j < 16; ++j) sums[j] = Normal(Normal(sums[j]) + Normal(parts[0][j] + parts[1][j]));
      std::memcpy(tiles_[kSum][i], sums, sizeof sums);
    }
  }

 private:
  static float Normal(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }
  // Without an instruction, fma() takes long. A product of two bfloat16 numbers is exact in float32 unless it leaves
  // the range of normal numbers.
  static float Fused(float a, float b, float sum) {
#if defined(__FMA__)
    return Normal(std::fma(a, b, sum));
#else
    const float product = a * b;
    const bool exact = std::isnormal(product) || a == 0 || b == 0;
    return Normal(exact ? product + sum : std::fma(a, b, sum));
#endif
  }
  float Wide(int tile, int row, int at) const {
    BFloat16 value;
    std::memcpy(&value.bits, tiles_[tile][row] + at * sizeof value.bits, sizeof value.bits);
    return Normal(static_cast<float>(value));
  }

  alignas(64) std::byte tiles_[8][16][64];
};

}  // namespace
}  // namespace shiftrt
