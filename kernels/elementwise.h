// SPDX-License-Identifier: Apache-2.0
// The memory-bound steps between products.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// out (tokens, hidden) = rows `tokens` of table (vocab, hidden), widened to float32, times `scale`. Throws Error for an
// id outside the table.
void Embed(const Context& context, std::span<const int32_t> tokens, const TensorView& table, MatrixView<float> out,
           float scale = 1);

// gate = silu(gate) * up, in place (Shazeer 2020): (tokens, intermediate). silu(x) = x / (1 + exp(-x)).
void SwiGlu(const Context& context, MatrixView<float> gate, MatrixView<const float> up);

// The same with the tanh form of GELU (Hendrycks & Gimpel 2016; "gelu_pytorch_tanh"):
// gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
void GeGlu(const Context& context, MatrixView<float> gate, MatrixView<const float> up);

// The gradients of `SwiGlu` and `GeGlu`, whose gate and up are those before the call: in place of dgate, which holds
// the gradient of the result when called, that of the gate; and dup. All are (tokens, intermediate).
void SwiGluGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> up,
                    MatrixView<float> dgate, MatrixView<float> dup);
void GeGluGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> up,
                   MatrixView<float> dgate, MatrixView<float> dup);

// x = cap * tanh(x / cap), in place: a soft cap of logits (Gemma 2). cap > 0.
void SoftCap(const Context& context, float cap, MatrixView<float> x);

// y += x.
void AddTo(const Context& context, MatrixView<const float> x, MatrixView<float> y);

}  // namespace shiftrt
