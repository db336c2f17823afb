// SPDX-License-Identifier: Apache-2.0
// The steps of a gated delta network between its first matrix products and the norm of its heads (Yang, Kautz and
// Hatamizadeh 2025; behaves as modeling_qwen3_5.py of transformers).
//
// A causal convolution of each channel, and SiLU, give queries, keys and values, which lie side by side in the
// channels. Each of the value_heads has a state S (key_dim, value_dim), which is zero before the first token of a
// sequence. With q and k divided by their norms, and q also by sqrt(key_dim), a token computes
//   g = exp(-exp(a_log) softplus(a + dt_bias)),  beta = sigmoid(b),
//   S = g S + k (beta (v - (g S)' k))',  out = S' q.
// Cost: 7 FLOP per element of the states and token. A head's state is read and written in the cache of one core; the
// convolution and the rule read and write their rows once.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/gated_delta_shape.h"
#include "runtime/tensor.h"

namespace shiftrt {

// A sequence, and what it goes on from and leaves behind. Null: it begins, or nobody goes on from it. The memory before
// and after may be the same.
struct DeltaSequence {
  int64_t begin = 0, count = 0;  // its rows
  const float* state_before = nullptr;
  float* state_after = nullptr;  // (value_heads, key_dim, value_dim)
  const float* rows_before = nullptr;
  float* rows_after = nullptr;  // (conv_width - 1, channels), the last inputs of the convolution
};

// out[t] = sum_j w[j] x[t - width + 1 + j] in each channel, with silu() of that if the shape says so: x and out
// (tokens, channels), which do not overlap; w (channels, 1, width), of any plain type. States are not read.
void CausalConvolution(const Context& context, const ConvolutionShape& shape, std::span<const DeltaSequence> sequences,
                       MatrixView<const float> x, const TensorView& w, MatrixView<float> out);

// The rule. Everything is in float32.
struct DeltaInputs {
  MatrixView<const float> mixed;  // (tokens, channels): the convolution's output
  MatrixView<const float> a, b;   // (tokens, value_heads)
  const TensorView& a_log;        // (value_heads), of any plain type
  const TensorView& dt_bias;      // likewise
};
// out is (tokens, value_heads * value_dim). Results do not depend on the number of threads.
void GatedDelta(const Context& context, const GatedDeltaShape& shape, std::span<const DeltaSequence> sequences,
                const DeltaInputs& inputs, MatrixView<float> out);

// Gradients, of sequences that go on from nothing. Those of inputs are written; those of weights, (1, n), are added to,
// unless they are empty.
void CausalConvolutionGradient(const Context& context, const ConvolutionShape& shape,
                               std::span<const DeltaSequence> sequences, MatrixView<const float> x, const TensorView& w,
                               MatrixView<const float> dout, MatrixView<float> dx, MatrixView<float> dw);
struct DeltaGradients {
  MatrixView<float> mixed, a, b;
  MatrixView<float> a_log, dt_bias;
};
void GatedDeltaGradient(const Context& context, const GatedDeltaShape& shape, std::span<const DeltaSequence> sequences,
                        const DeltaInputs& inputs, MatrixView<const float> dout, const DeltaGradients& gradients);

}  // namespace shiftrt
