// SPDX-License-Identifier: Apache-2.0
// A gated delta network between its first products and its last one (kernels/gated_delta.h): convolution and gates, the
// rule, and the gated norm of the heads. A sequence of few tokens goes through the rule token by token, and a longer
// one in chunks (Yang, Kautz and Hatamizadeh 2025, section 3.3). All is in float32 but for the results of products.
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/gated_delta_shape.h"

namespace shiftrt::gpu {

// A sequence of a call. States are counted from the call's first; each has sequence_floats(), those of the rule and
// then those of the convolution. Negative: the sequence begins, or nobody goes on from it. No sequence of a launch
// writes a state that another one of it reads or, with other numbers, writes.
struct DeltaRange {
  int32_t begin = 0, count = 0;   // its tokens
  int32_t before = 0, after = 0;  // the state that it goes on from, and the one that it leaves
};

struct DeltaCall {
  GatedDeltaShape shape;                  // heads of at most kMostDeltaDim
  const DeltaRange* sequences = nullptr;  // (sequence_count)
  int64_t sequence_count = 0, longest = 0;
  float* states = nullptr;

  // These have rows for all tokens of the batch.
  ConstDeviceArray x;    // the convolution's input, (tokens, channels), and for NormDelta() z behind it
  int64_t x_stride = 0;  // elements between two rows of it
  const float *b = nullptr, *a = nullptr;  // (tokens, value_heads)
  int64_t gates_stride = 0;                // elements between two rows of each
  const float* conv = nullptr;             // (channels, conv_width)
  const float* a_log = nullptr;            // (value_heads)
  const float* dt_bias = nullptr;          // (value_heads)
  // Written by ConvolveDelta().
  float* mixed = nullptr;   // (tokens, channels): normed queries and keys, and values
  float* decays = nullptr;  // (tokens, 2 value_heads): the logarithm of g, and beta
  // Written by ApplyDeltaRule().
  float* out = nullptr;     // (tokens, values)
  float* chunks = nullptr;  // (tokens, shape.chunk_floats()); unused for few tokens
};
inline constexpr int64_t kMostDeltaDim = 256;
// Sequences of up to so many tokens go through the rule token by token.
inline constexpr int64_t kFewDeltaTokens = 16;

// Cost: reads each row of x conv_width times, all but once from a cache, and writes `mixed`; one launch.
void ConvolveDelta(Stream stream, const DeltaCall& call);
// Cost: for few tokens, reads and writes each state once, and 6 FLOP per element of a state and token; one launch.
// Otherwise 6 key_dim value_dim + 64 (4 key_dim + 2 value_dim) + 64 (key_dim + value_dim) FLOP per token and head; two
// launches, of which the first leaves in `decays` their sums from the beginning of each chunk.
void ApplyDeltaRule(Stream stream, const DeltaCall& call);
// to (tokens, values), in the type of x, = silu(z) * out / sqrt(mean(out^2) + eps) * weight, the mean over each head;
// weight (value_dim). Cost: reads `out` and z and writes `to` once; one launch.
void NormDelta(Stream stream, const DeltaCall& call, int64_t tokens, const float* weight, float eps, DeviceArray to);

// The gradients of ConvolveDelta() and ApplyDeltaRule() for sequences that go on from nothing and leave nothing, in
// chunks whatever their lengths. All matrices are dense and float32.
struct DeltaGradientCall {
  // As those functions took it, in the order of the sequences' tokens. `mixed` may hold anything; `out` and `chunks`
  // are memory that this call writes.
  DeltaCall call;
  int64_t tokens = 0;
  const float* out = nullptr;   // (tokens, values): the output
  const float* dout = nullptr;  // (tokens, values): its gradient
  // Memory that this call writes: (tokens, values), and DeltaChunks() times shape.state_floats() twice.
  float *changes = nullptr, *starts = nullptr, *ends = nullptr;
  float* dmixed = nullptr;             // (tokens, channels): likewise
  float* dx = nullptr;                 // (tokens, channels)
  float *da = nullptr, *db = nullptr;  // (tokens, value_heads)
  float* da_log = nullptr;             // (tokens, value_heads): the part of each token in the gradient of a_log
  float* dconv = nullptr;              // (channels, conv_width), added to; null: it is not wanted
};
// Its first step, after ConvolveDelta(): like ApplyDeltaRule() in chunks, but writes the states before the chunks, and
// in the place of the output what is added to the state times each token's key. Two launches.
void KeepDeltaStates(Stream stream, const DeltaCall& call, float* starts);
inline int64_t DeltaChunks(int64_t tokens, int64_t sequences) { return tokens / GatedDeltaShape::kChunk + sequences; }
// The gradient of dt_bias is the sum of the rows of `da`, and that of a_log the sum of those of `da_log`. Nothing
// depends on the order of blocks. Cost: seven launches, or eight with dconv; per token and value head, with C = 64,
// 6 key_dim value_dim + C (5 key_dim + 3 value_dim) multiply-adds more than those of the forward pass twice.
void DeltaGradient(Stream stream, const DeltaGradientCall& of);

}  // namespace shiftrt::gpu
