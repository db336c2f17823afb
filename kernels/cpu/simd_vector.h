// SPDX-License-Identifier: Apache-2.0
// A policy for MakeBody based on the compiler's vector extension: any number of lanes on any machine. Four lanes are
// SSE2 on x86-64 and NEON on Arm. Sixteen lanes replace AVX-512 on a CPU that does not have it.
#pragma once

#include <cstring>

#include "kernels/cpu/simd_body_impl.h"
#include "kernels/cpu/simd_transpose.h"

namespace shiftrt {
namespace {

using FourInts = int32_t __attribute__((vector_size(16)));
using SixteenFloats = float __attribute__((vector_size(64)));
using SixteenInts = int32_t __attribute__((vector_size(64)));

template <typename FloatLanes, typename IntLanes, int kRows, int64_t kDepth>
struct VectorLanes {
  using Reg = FloatLanes;
  using Int = IntLanes;
  static constexpr int kWidth = sizeof(Reg) / sizeof(float);
  static constexpr int kTileRows = kRows;
  static constexpr int kDotRows = kWidth == 16 ? 8 : 4;  // rows of x of a tile of dot products
  static constexpr int64_t kMaxDepth = kDepth;

  static Reg Zero() { return Reg{}; }
  static Reg Broadcast(float x) { return x - Reg{}; }
  static Reg Load(const float* p) {
    Reg r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  template <typename T>
  static Reg Load(const T* p) {
    Reg r;
    for (int i = 0; i < kWidth; ++i) r[i] = WidenOne(p[i]);
    return r;
  }
  // Signed bytes kWidth part to kWidth part + kWidth - 1.
  static Reg FromBytes(const HalfBytes& bytes, int part) {
    Reg r;
    for (int i = 0; i < kWidth; ++i) r[i] = static_cast<float>(bytes[part * kWidth + i]);
    return r;
  }
  // The same, kept in a register: the compiler may load an operand anew for each instruction that takes one from
  // memory.
  static Reg InRegister(Reg r) { return r; }
  static void Store(float* p, Reg r) { std::memcpy(p, &r, sizeof r); }
  static Reg Add(Reg a, Reg b) { return a + b; }
  static Reg MultiplyAdd(Reg a, Reg b, Reg c) { return a * b + c; }
  static float Sum(Reg r) {
    for (int half = kWidth / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) r[i] += r[i + half];
    return r[0];
  }
  static void Transpose(Reg (&r)[kWidth]) {
    if constexpr (kWidth == 16) {
      Transpose16(r);
    } else {
      for (int i = 0; i < kWidth; ++i)
        for (int j = 0; j < i; ++j) {
          const float below = r[i][j];
          r[i][j] = r[j][i];
          r[j][i] = below;
        }
    }
  }
};

}  // namespace
}  // namespace shiftrt
