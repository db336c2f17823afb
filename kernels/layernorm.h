// SPDX-License-Identifier: Apache-2.0
// Layer norm (Ba, Kiros & Hinton 2016): out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * (offset + weight) +
// bias, row by row. The offset is 0, or 1 if the checkpoint stores weight - 1 (Nemotron). A bias that is empty() is 0.
// Cost: reads and writes each element once, 7 FLOP per element.
#pragma once

#include "kernels/rmsnorm.h"

namespace shiftrt {

// x, out (tokens, n), out may be x; weight and bias (n) in any float dtype. Sums in float64.
void LayerNorm(const Context& context, MatrixView<const float> x, const TensorView& weight, const TensorView& bias,
               float eps, MatrixView<float> out, float offset = 0);

// The gradients of LayerNorm: dx (tokens, n) = (dx if accumulate) + the gradient of x; dweight and dbias (1, n), those
// that are not empty, += the gradients of weight and bias. dx may be dy unless it accumulates.
void LayerNormGradient(const Context& context, const NormGradient& norm, MatrixView<const float> dy, bool accumulate,
                       MatrixView<float> dx, MatrixView<float> dweight = {}, MatrixView<float> dbias = {});

}  // namespace shiftrt
