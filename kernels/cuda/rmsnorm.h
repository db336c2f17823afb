// SPDX-License-Identifier: Apache-2.0
// The norm of rows, and its gradient (kernels/rmsnorm.h, kernels/layernorm.h); that of the residual stream is fused
// with the addition of the pending update.
#pragma once

#include "kernels/cuda/rows.h"

namespace shiftrt::gpu {

// An update that must still be added to the stream: update (tokens, hidden) dense, plus bias (hidden). Either may be
// null.
struct Pending {
  const float* update = nullptr;
  const float* bias = nullptr;
};

// RMSNorm, x / sqrt(mean(x^2) + eps) * (offset + weight), or with `centred` LayerNorm, (x - mean(x)) / sqrt(variance(x)
// + eps) * (offset + weight) + bias, of every group of n adjacent columns: n = 0 is the norm of rows, n = head_dim that
// of heads. weight and bias (n) in device memory; bias may be null, and is null without `centred`.
struct Norm {
  const float* weight = nullptr;
  float eps = 0;
  bool centred = false;
  const float* bias = nullptr;
  float offset = 0;
  int64_t n = 0;  // divides the number of columns
};

// h += pending; out = norm(h). h (tokens, hidden) float32 dense; out (tokens, hidden) dense in its type, not h. hidden:
// a multiple of 8. Without weight, out = h. Cost: reads h and the update, writes h and out; one launch. LayerNorm reads
// h once more than RMSNorm, from a cache.
void AddNorm(Stream stream, MatrixView<float> h, const Pending& pending, const Norm& norm, DeviceArray out);
// out = norm(x), of any width and stride; out may be x. Cost: reads x twice (three times if centred), from a cache
// after the first time, and writes out; one launch.
void NormRows(Stream stream, const Norm& norm, MatrixView<const float> x, const WrittenRows& out);
// update = (update + bias) / sqrt(mean((update + bias)^2) + eps) * weight * scale, in place, and h += update: the end
// of a half of a block. Without weight, update = (update + bias) * scale. h, update (tokens, hidden) dense; bias
// (hidden) may be null.
void AddNormedUpdate(Stream stream, MatrixView<float> h, float* update, const float* bias, const float* weight,
                     float eps, float scale = 1);

// dx = (dx if accumulate) + the gradient of x, which is NormRows' input; dx may be dy unless it accumulates. dweight
// (1, n), if its data is not null, += the gradient of the weights, added in a fixed order. `scales` has an element per
// group of x, or two if centred, and is used only with dweight. The gradient of the bias is AddColumnSums() of dy.
// Cost: reads x and dy, writes dx; with dweight, reads x twice more and dy once more; one launch, or three.
void NormRowsGradient(Stream stream, const Norm& norm, MatrixView<const float> x, MatrixView<const float> dy,
                      bool accumulate, const WrittenRows& dx, MatrixView<float> dweight = {}, float* scales = nullptr);

}  // namespace shiftrt::gpu
