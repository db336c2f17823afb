// Causal grouped-query attention over packed sequences, each with its own keys and values.
// Cost: 4 head_dim FLOP per pair of a query and a visible key, and head; keys and values read once per query block.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// Queries [begin, begin + count) of the batch see keys 0 .. past + i of `keys` for the i-th of them, or the last of
// these where the shape has a window. keys, values: (past + count or more, kv_heads * head_dim) float32, rows may be
// strided.
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
  int64_t window = 0;  // a query sees the last `window` of its keys, its own included; 0: all of them
  float soft_cap = 0;  // a scaled score s counts as soft_cap tanh(s / soft_cap) (Gemma 2); 0: as it is
};

// out, q: (tokens, heads * head_dim); out must not alias q. Online softmax in float32, numerically safe for any logits.
void Attention(const Context& context, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               MatrixView<const float> q, MatrixView<float> out);

}  // namespace shiftrt
