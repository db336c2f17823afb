// Four lanes through the compiler's vector extension: SSE2 on x86-64, NEON on Arm, scalars elsewhere.
#include <cstring>

#include "kernels/simd_body_impl.h"

namespace shiftrt {
namespace {

struct Portable {
  using Reg = float __attribute__((vector_size(16)));
  using Int = int32_t __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static constexpr int kTileRows = 4;

  static Reg Zero() { return Reg{}; }
  static Reg Broadcast(float x) { return Reg{x, x, x, x}; }
  static Reg Load(const float* p) {
    Reg r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  template <typename T>
  static Reg Load(const T* p) {
    return Reg{WidenOne(p[0]), WidenOne(p[1]), WidenOne(p[2]), WidenOne(p[3])};
  }
  static void Store(float* p, Reg r) { std::memcpy(p, &r, sizeof r); }
  static Reg Add(Reg a, Reg b) { return a + b; }
  static Reg MultiplyAdd(Reg a, Reg b, Reg c) { return a * b + c; }
  static float Sum(Reg r) { return (r[0] + r[1]) + (r[2] + r[3]); }
  template <typename T>
  static void Transpose(const T* w, int64_t stride, float* out, int64_t out_stride) {
    TransposeScalar<kWidth>(w, stride, out, out_stride);
  }
};

}  // namespace

extern const SimdBody kPortableBody = MakeBody<Portable>();

}  // namespace shiftrt
