// SPDX-License-Identifier: Apache-2.0
// The norm of float32 rows with any stride, and its gradient (kernels/rmsnorm.h, kernels/layernorm.h).
#pragma once

#include "kernels/cuda/rows.h"

namespace shiftrt::gpu {

// The norm of every group of n adjacent columns: n = cols is the norm of rows, n = head_dim that of heads.
struct GroupNorm {
  int64_t n = 0;  // divides cols
  const float* weight = nullptr;
  float offset = 0;  // added to every weight
  float eps = 0;
  bool centred = false;         // LayerNorm: the mean of a group is subtracted first
  const float* bias = nullptr;  // with centred: added to every group; may be null
};
// out = x / sqrt(mean(x^2) + eps) * (offset + weight) + bias; out may be x. Cost: reads x twice (three times if
// centred), from a cache after the first time, and writes out; one launch.
void NormGroups(Stream stream, const GroupNorm& norm, MatrixView<const float> x, const WrittenRows& out);

// dx = (dx if accumulate) + the gradient of x, which is NormGroups' input; dx may be dy unless it accumulates. dweight
// (1, n), if its data is not null, += the gradient of the weights, added in a fixed order. `scales` has an element per
// group of x, or two if centred, and is used only with dweight. The gradient of the bias is AddColumnSums() of dy.
// Cost: reads x and dy, writes dx; with dweight, reads x twice more and dy once more; one launch, or three.
void NormGroupsGradient(Stream stream, const GroupNorm& norm, MatrixView<const float> x, MatrixView<const float> dy,
                        bool accumulate, const WrittenRows& dx, MatrixView<float> dweight = {},
                        float* scales = nullptr);

}  // namespace shiftrt::gpu
