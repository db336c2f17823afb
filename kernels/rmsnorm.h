// SPDX-License-Identifier: Apache-2.0
// Root-mean-square norm (Zhang & Sennrich 2019): out = x / sqrt(mean(x^2) + eps) * (offset + weight), row by row. The
// offset is 0, or 1 if the checkpoint stores weight - 1 (Gemma).
// Cost: reads and writes each element once, 4 FLOP per element.
#pragma once

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// x, out (tokens, n), out may be x; weight (n) in any float dtype. Sums in float32 (blocked) or better.
void RmsNorm(const Context& context, MatrixView<const float> x, const TensorView& weight, float eps,
             MatrixView<float> out, float offset = 0);

// RmsNorm of each head of x (tokens, heads * head_dim), in place: the q and k norms of Qwen3; weight (head_dim).
void RmsNormHeads(const Context& context, MatrixView<float> x, int64_t head_dim, const TensorView& weight, float eps,
                  float offset = 0);

// The input and the arguments of a norm, for its gradient.
struct NormGradient {
  MatrixView<const float> x;
  const TensorView& weight;
  float eps;
  float offset = 0;
};
// The gradients of RmsNorm: dx (tokens, n) = (dx if accumulate) + the gradient of x, and dweight (1, n), if it is not
// empty, += the gradient of the weights. dx may be dy unless it accumulates.
void RmsNormGradient(const Context& context, const NormGradient& norm, MatrixView<const float> dy, bool accumulate,
                     MatrixView<float> dx, MatrixView<float> dweight = {});
// The gradients of RmsNormHeads. Its x (tokens, heads * head_dim) is the input of the norm; dweight is (1, head_dim).
void RmsNormHeadsGradient(const Context& context, const NormGradient& norm, int64_t head_dim,
                          MatrixView<const float> dy, MatrixView<float> dx, MatrixView<float> dweight = {});

}  // namespace shiftrt
