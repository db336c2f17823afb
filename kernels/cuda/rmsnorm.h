// SPDX-License-Identifier: Apache-2.0
// The norm of the residual stream (kernels/rmsnorm.h, kernels/layernorm.h), fused with the addition of the pending
// update. Cost: reads h and the update, writes h and out; one launch.
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

// An update that must still be added to the stream: update (tokens, hidden) dense, plus bias (hidden). Either may be
// null.
struct Pending {
  const float* update = nullptr;
  const float* bias = nullptr;
};

// RMSNorm, x / sqrt(mean(x^2) + eps) * weight, or with `centred` LayerNorm, (x - mean(x)) / sqrt(variance(x) + eps) *
// weight + bias. weight and bias (hidden); bias may be null, and is null without `centred`.
struct Norm {
  const float* weight = nullptr;
  float eps = 0;
  bool centred = false;
  const float* bias = nullptr;
};

// h += pending; out = norm(h). h (tokens, hidden) float32 dense; out (tokens, hidden) in its type, not h. hidden: a
// multiple of 8. Without weight, out = h. LayerNorm reads h once more than RMSNorm, from a cache.
void AddNorm(Stream stream, MatrixView<float> h, const Pending& pending, const Norm& norm, DeviceArray out);
// update = (update + bias) / sqrt(mean((update + bias)^2) + eps) * weight * scale, in place, and h += update: the end
// of a half of a block. Without weight, update = (update + bias) * scale. h, update (tokens, hidden) dense; bias
// (hidden) may be null.
void AddNormedUpdate(Stream stream, MatrixView<float> h, float* update, const float* bias, const float* weight,
                     float eps, float scale = 1);
// h += pending, without the norm.
void AddPending(Stream stream, MatrixView<float> h, const Pending& pending);
// out = a + b, each with `n` elements; n: a multiple of 8. out may be a or b.
void Add(Stream stream, const float* a, const float* b, int64_t n, float* out);
// out = a - b, likewise.
void Subtract(Stream stream, const float* a, const float* b, int64_t n, float* out);

}  // namespace shiftrt::gpu
