// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes: AVX-512, or the compiler's vector extension if a file is compiled for another target. The tests use
// the latter on a CPU without AVX-512.
#pragma once

#include "kernels/cpu/simd_vector.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace shiftrt {
namespace {

// 12 x 32 register tile: 24 accumulators, two loads and a broadcast of the 32 registers.
using EmulatedLanes512 = VectorLanes<SixteenFloats, SixteenInts, 12, 256>;

#if defined(__AVX512F__)
struct Lanes512 : EmulatedLanes512 {
  static Reg Load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg Load(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Reg Load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Reg FromBytes(const HalfBytes& bytes, int) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes)); }
  static Reg InRegister(Reg r) {
    asm("" : "+v"(r));
    return r;
  }
  static Reg MultiplyAdd(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static float Sum(Reg r) { return _mm512_reduce_add_ps(r); }
};
#else
using Lanes512 = EmulatedLanes512;
#endif

}  // namespace
}  // namespace shiftrt
