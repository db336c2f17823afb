// SPDX-License-Identifier: Apache-2.0
// Eight lanes with a register tile of 6 x 16: 12 accumulators, two loads and one broadcast fill the sixteen registers.
#include "kernels/cpu/simd_body_impl.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace shiftrt {
namespace {

struct Avx2 {
  using Reg = __m256;
  using Int = int32_t __attribute__((vector_size(32)));
  static constexpr int kWidth = 8;
  static constexpr int kTileRows = 6;
  static constexpr int kDotRows = 4;  // rows of x of a tile of dot products
  static constexpr int64_t kMaxDepth = 256;

  static Reg Zero() { return _mm256_setzero_ps(); }
  static Reg Broadcast(float x) { return _mm256_set1_ps(x); }
  static Reg Load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg Load(const BFloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Reg Load(const Float16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  // Signed bytes 8 part to 8 part + 7.
  static Reg FromBytes(const HalfBytes& bytes, int part) {
    const auto half = (__m128i)bytes;
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(part == 0 ? half : _mm_srli_si128(half, 8)));
  }
  static Reg InRegister(Reg r) {
    asm("" : "+x"(r));
    return r;
  }
  static void Store(float* p, Reg r) { _mm256_storeu_ps(p, r); }
  static Reg Add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg MultiplyAdd(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static float Sum(Reg r) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(r), _mm256_extractf128_ps(r, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  // Exchanges single elements, then pairs, then halves.
  static void Transpose(Reg (&r)[8]) {
    Reg s[8];
    for (int i = 0; i < 8; i += 2) {
      s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      const Reg low = r[i], high = r[i + 4];
      r[i] = _mm256_permute2f128_ps(low, high, 0x20);
      r[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
  }
};

}  // namespace

extern const SimdBody kAvx2Body = MakeBody<Avx2>();

}  // namespace shiftrt
#else
namespace shiftrt {
extern const SimdBody kAvx2Body = kPortableBody;
}
#endif
