// SPDX-License-Identifier: Apache-2.0
// Transposes matrices of 32-bit lanes with the compiler's vector extension.
#pragma once

#include <cstdint>

namespace shiftrt {
namespace {

// Transposes each square of four vectors and four lanes in place by exchanging single lanes, then pairs. Each of the
// two steps takes lane j of a vector and of the one one or two further to where the transposed square has them.
template <typename Reg, int kCount>
inline void TransposeSquares(Reg (&r)[kCount]) {
  Reg s[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; i += 2) {
    s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Reg low = s[i + j], high = s[i + 2 + j];
      r[i + 2 * j] = __builtin_shufflevector(low, high, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      r[i + 2 * j + 1] = __builtin_shufflevector(low, high, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
}

// Transposes a matrix of 16 x 8, of which vector i has row i and row i + 8, in place: vector j is column j.
template <typename Reg>
inline void Transpose8(Reg (&r)[8]) {
  TransposeSquares(r);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Reg a = r[i], b = r[i + 4];
    r[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    r[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
}

// Transposes 16 vectors of 16 lanes in place.
template <typename Reg>
inline void Transpose16(Reg (&r)[16]) {
  TransposeSquares(r);
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    const Reg a = r[i], b = r[i + 4], c = r[i + 8], d = r[i + 12];
    const Reg ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    const Reg ba = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    const Reg cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    const Reg dc = __builtin_shufflevector(c, d, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    r[i] = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    r[i + 4] = __builtin_shufflevector(ba, dc, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    r[i + 8] = __builtin_shufflevector(ab, cd, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    r[i + 12] = __builtin_shufflevector(ba, dc, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
}

}  // namespace
}  // namespace shiftrt
