// SPDX-License-Identifier: Apache-2.0
// Root-mean-square norm of the residual stream (kernels/rmsnorm.h), fused with the addition of the pending update.
// Cost: reads h and the update, writes h and out; one launch.
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

// h += pending; out = h / sqrt(mean(h^2) + eps) * weight. h (tokens, hidden) float32 dense; weight (hidden); out
// (tokens, hidden) in its type, not h. hidden: a multiple of 8. Without weight, out = h.
void AddRmsNorm(Stream stream, MatrixView<float> h, const Pending& pending, const float* weight, float eps,
                DeviceArray out);
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
