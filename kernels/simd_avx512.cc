// Sixteen lanes, 12 x 32 register tile.
#include "kernels/simd_body_impl.h"

#if defined(__AVX512F__)
#include <immintrin.h>

namespace shiftrt {
namespace {

struct Avx512 {
  using Reg = __m512;
  using Int = int32_t __attribute__((vector_size(64)));
  static constexpr int kWidth = 16;
  static constexpr int kTileRows = 12;

  static Reg Zero() { return _mm512_setzero_ps(); }
  static Reg Broadcast(float x) { return _mm512_set1_ps(x); }
  static Reg Load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg Load(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Reg Load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static void Store(float* p, Reg r) { _mm512_storeu_ps(p, r); }
  static Reg Add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg MultiplyAdd(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static float Sum(Reg r) { return _mm512_reduce_add_ps(r); }
  template <typename T>
  static void Transpose(const T* w, int64_t stride, float* out, int64_t out_stride) {
    TransposeScalar<kWidth>(w, stride, out, out_stride);
  }
};

}  // namespace

extern const SimdBody kAvx512Body = MakeBody<Avx512>();

}  // namespace shiftrt
#else
namespace shiftrt {
extern const SimdBody kAvx512Body = kPortableBody;
}
#endif
