// SPDX-License-Identifier: Apache-2.0
// The memory-bound operations between matrix products.
#pragma once

#include <span>

#include "runtime/activation.h"
#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// out (tokens, hidden) = rows `tokens` of table (vocab, hidden), widened to float32, times `scale`. Throws Error for an
// id outside the table.
void Embed(const Context& context, std::span<const int32_t> tokens, const TensorView& table, MatrixView<float> out,
           float scale = 1);

// gate = silu(gate) * up, in place (Shazeer 2020): (tokens, intermediate). silu(x) = x / (1 + exp(-x)).
void SwiGlu(const Context& context, MatrixView<float> gate, MatrixView<const float> up);

// gate = gelu(gate) * up, in place, with the tanh form of GELU (Hendrycks & Gimpel 2016; "gelu_pytorch_tanh"): gelu(x)
// = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
void GeGlu(const Context& context, MatrixView<float> gate, MatrixView<const float> up);

// The gradients of `SwiGlu` and `GeGlu`. gate and up are the inputs of that call. dgate holds the gradient of its
// result and is replaced by that of gate; dup receives that of up. All are (tokens, intermediate).
void SwiGluGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> up,
                    MatrixView<float> dgate, MatrixView<float> dup);
void GeGluGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> up,
                   MatrixView<float> dgate, MatrixView<float> dup);

// x = activation(x), in place: the MLP without gate.
void Activate(const Context& context, Activation activation, MatrixView<float> x);
// Its gradient: dx, the gradient of the result, becomes that of x, which is the input of Activate().
void ActivateGradient(const Context& context, Activation activation, MatrixView<const float> x, MatrixView<float> dx);

// x = cap * tanh(x / cap), in place: the soft cap of logits (Gemma 2). cap > 0.
void SoftCap(const Context& context, float cap, MatrixView<float> x);

// y += x.
void AddTo(const Context& context, MatrixView<const float> x, MatrixView<float> y);

}  // namespace shiftrt
