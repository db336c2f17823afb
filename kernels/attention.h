// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention over packed sequences, each with its own keys and values.
// With Products::kBFloat16 the operands of the products are rounded to bfloat16, as kernels/matmul.h says: queries,
// keys, values, probabilities and, backwards, the gradients of outputs and scores. It does not hold for a few query
// rows. Cost: 4 head_dim FLOP per head and pair of a query and a visible key; reads keys and values once per query
// block.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// Queries [begin, begin + count) of the batch. The i-th of them sees keys 0 .. past + i of `keys`, or the last of these
// if the shape has a window. keys, values: (past + count or more, kv_heads * head_dim) float32; rows may be strided.
struct AttentionSequence {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t past = 0;
  MatrixView<const float> keys;
  MatrixView<const float> values;
};

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; query head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;
  float scale = 0;     // usually 1 / sqrt(head_dim)
  int64_t window = 0;  // a query sees the last `window` of its keys, including its own; 0: all of them
  float soft_cap = 0;  // a scaled score s becomes soft_cap tanh(s / soft_cap) (Gemma 2); 0: it is unchanged
  // (heads), or empty: a sink adds exp(sink) to the denominator of the softmax of its head and nothing to its result
  // (gpt-oss; Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks").
  std::span<const float> sinks = {};
};

// out, q: (tokens, heads * head_dim); out must not alias q. The softmax is online, in float32, and safe for any scores.
void Attention(const Context& context, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               MatrixView<const float> q, MatrixView<float> out);

// Attention within packed sequences without any past, for a gradient: sequence s is the rows offsets[s] ..
// offsets[s + 1] - 1 of q (tokens, heads * head_dim), keys and values (tokens, kv_heads * head_dim).
struct PackedAttention {
  AttentionShape shape;
  std::span<const int64_t> offsets;
  MatrixView<const float> q, keys, values;
};
// Computes out as Attention() does, and log_sums (tokens, heads): the logarithm of the denominator of the softmax over
// scaled and capped scores, which counts the sink.
void AttentionForGradient(const Context& context, const PackedAttention& attention, MatrixView<float> out,
                          MatrixView<float> log_sums);
// Computes the gradients of q, keys and values from dout, the gradient of out. The scores are computed again, block by
// block (Dao et al. 2022), so that no array of tokens x tokens exists. Cost: 10 head_dim FLOP per head and pair of a
// query and a visible key. The result does not depend on the number of threads.
struct AttentionGradients {
  MatrixView<float> q, keys, values;  // overwritten
};
void AttentionGradient(const Context& context, const PackedAttention& attention, MatrixView<const float> out,
                       MatrixView<const float> log_sums, MatrixView<const float> dout,
                       const AttentionGradients& gradients);
// Adds the gradient of the sinks to dsinks (heads): with the probability p = exp(sink - log_sum) of a head's sink for a
// token, the sum over the tokens of -p <dout, out>.
void AttentionSinkGradient(const Context& context, const AttentionShape& shape, MatrixView<const float> out,
                           MatrixView<const float> log_sums, MatrixView<const float> dout, std::span<float> dsinks);

}  // namespace shiftrt
