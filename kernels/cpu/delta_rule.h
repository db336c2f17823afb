// SPDX-License-Identifier: Apache-2.0
// The loops of the gated delta rule over some columns of a head's state, templated over the policy of
// kernels/cpu/simd_body_impl.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd_body.h"

namespace shiftrt {
namespace {

// Vectors of a row of the state that are processed at once: 128 rows of them take 16 KiB of the first-level cache.
template <typename V>
constexpr int kDeltaRegs = V::kWidth == 16 ? 2 : 4;

// The products of a column of the state with k or q have two chains of additions.
template <typename V>
void DeltaRule(const DeltaRows& of, float* state) {
  using Reg = typename V::Reg;
  constexpr int kRegs = kDeltaRegs<V>;
  constexpr int64_t kColumns = kRegs * V::kWidth;
  float row[kColumns] = {};
  for (int64_t t = 0; t < of.tokens; ++t) {
    const float *const k = of.k + t * of.key_dim, *const q = of.q + t * of.key_dim;
    const Reg decay = V::Broadcast(of.decay[t]), beta = V::Broadcast(of.beta[t]);
    Reg even[kRegs], odd[kRegs], change[kRegs];
    for (int r = 0; r < kRegs; ++r) even[r] = odd[r] = V::Zero();
    int64_t i = 0;
    for (; i + 2 <= of.key_dim; i += 2) {
      const Reg first = V::Broadcast(k[i]), second = V::Broadcast(k[i + 1]);
      const float* const at = state + i * kColumns;
#pragma GCC unroll 4
      for (int r = 0; r < kRegs; ++r) {
        even[r] = V::MultiplyAdd(first, V::Load(at + r * V::kWidth), even[r]);
        odd[r] = V::MultiplyAdd(second, V::Load(at + kColumns + r * V::kWidth), odd[r]);
      }
    }
    if (i < of.key_dim)
      for (int r = 0; r < kRegs; ++r)
        even[r] = V::MultiplyAdd(V::Broadcast(k[i]), V::Load(state + i * kColumns + r * V::kWidth), even[r]);
    std::memcpy(row, of.v + t * of.v_stride, static_cast<size_t>(of.columns) * sizeof(float));
    for (int r = 0; r < kRegs; ++r) {
      change[r] = beta * (V::Load(row + r * V::kWidth) - decay * (even[r] + odd[r]));
      even[r] = odd[r] = V::Zero();
    }
    const auto update = [&](int64_t key, Reg(&sums)[kRegs]) {
      const Reg of_k = V::Broadcast(k[key]), of_q = V::Broadcast(q[key]);
      float* const at = state + key * kColumns;
#pragma GCC unroll 4
      for (int r = 0; r < kRegs; ++r) {
        const Reg s = V::MultiplyAdd(of_k, change[r], decay * V::Load(at + r * V::kWidth));
        V::Store(at + r * V::kWidth, s);
        sums[r] = V::MultiplyAdd(of_q, s, sums[r]);
      }
    };
    for (i = 0; i + 2 <= of.key_dim; i += 2) {
      update(i, even);
      update(i + 1, odd);
    }
    if (i < of.key_dim) update(i, even);
    float out[kColumns];
    for (int r = 0; r < kRegs; ++r) V::Store(out + r * V::kWidth, even[r] + odd[r]);
    std::memcpy(of.out + t * of.out_stride, out, static_cast<size_t>(of.columns) * sizeof(float));
  }
}

}  // namespace
}  // namespace shiftrt
