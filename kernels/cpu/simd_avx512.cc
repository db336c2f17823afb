// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes, 12 x 32 register tile: 24 accumulators, two loads and a broadcast of the 32 registers.
#include "kernels/cpu/simd_vector.h"

namespace shiftrt {
namespace {
constexpr int kTileRows = 12;
constexpr int64_t kMaxDepth = 256;
}  // namespace
}  // namespace shiftrt

#if defined(__AVX512F__)
#include <immintrin.h>

namespace shiftrt {
namespace {

struct Avx512 : VectorLanes<SixteenFloats, SixteenInts, kTileRows, kMaxDepth> {
  static Reg Load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg Load(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Reg Load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Reg MultiplyAdd(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static float Sum(Reg r) { return _mm512_reduce_add_ps(r); }
};

}  // namespace

extern const SimdBody kAvx512Body = MakeBody<Avx512>();

}  // namespace shiftrt
#else
// Compiled for another target, the same code still works, but slowly. The tests use this on a CPU without AVX-512.
namespace shiftrt {
extern const SimdBody kAvx512Body = MakeBody<VectorLanes<SixteenFloats, SixteenInts, kTileRows, kMaxDepth> >();
}
#endif
