// SPDX-License-Identifier: Apache-2.0
// Vectors of 64 bytes that hold 32 bfloat16 numbers, and loads of the operands that become such vectors.
#pragma once

#include <algorithm>

#include "kernels/cpu/lanes512.h"

namespace shiftrt {
namespace {

using Words = uint16_t __attribute__((vector_size(64)));
using Bits = uint32_t __attribute__((vector_size(64)));

constexpr int64_t kLanes = 16;         // float32 numbers of a vector
constexpr int64_t kStep = 2 * kLanes;  // elements of k that are packed at a time

// The upper halves of the 32 lanes of two vectors.
inline Words UpperHalves(Bits low, Bits high) {
  return __builtin_shufflevector((Words)low, (Words)high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33,
                                 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63);
}

// The nearest bfloat16 numbers, in the upper halves of the lanes; of two that are equally near the even one, as the
// instructions of AVX512-BF16 round. A NaN stays one.
inline Bits Rounded(SixteenFloats x) {
  const Bits bits = (Bits)x, size = bits & 0x7fffffffu;
  const Bits nearest = bits + 0x7fffu + (bits >> 16 & 1u);
  return (size > 0x7f800000u ? bits | 0x400000u : nearest) & 0xffff0000u;
}

// Loads 32 elements; only the first `count` are read, and the others are 0.
template <typename T>
inline void LoadStep(const T* from, int64_t count, SixteenFloats (&x)[2]) {
  T ends[kStep] = {};
  if (count < kStep) {
    std::copy_n(from, count, ends);
    from = ends;
  }
  x[0] = Lanes512::Load(from);
  x[1] = Lanes512::Load(from + kLanes);
}

// Loads 16 elements; only the first `count` are read, and the others are 0.
template <typename T>
inline SixteenFloats LoadColumns(const T* from, int64_t count) {
  T ends[kLanes] = {};
  if (count < kLanes) {
    std::copy_n(from, std::max<int64_t>(0, count), ends);
    from = ends;
  }
  return Lanes512::Load(from);
}

}  // namespace
}  // namespace shiftrt
