// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention (kernels/attention.h) in two forms: split over the keys, for decoding, and tiled on
// the tensor cores, for whole sequences. The softmax is online and in float32.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

struct AttentionShape {
  int heads = 0;
  int kv_heads = 0;  // divides heads; query head h reads kv head h / (heads / kv_heads)
  int head_dim = 0;  // 64, 80, 96, 128 or 256
  float scale = 0;
  int window = 0;      // a query sees the last `window` of its keys, including its own; 0: all of them
  float soft_cap = 0;  // a scaled score s becomes soft_cap tanh(s / soft_cap); 0: it is unchanged
};

// A few queries, each with its own range of keys. Query t sees rows first_row[t] .. first_row[t] + visible[t] - 1
// of keys and values (rows, kv_heads * head_dim), or the last `window` of these; visible[t] >= 1, in device memory, so
// that a recorded launch serves every step. Cost: reads the visible keys and values once per kv head and group of eight
// query heads.
struct SplitAttention {
  AttentionShape shape;
  const float* q = nullptr;  // (tokens, heads * head_dim)
  ConstDeviceArray keys, values;
  const int32_t* first_row = nullptr;
  const int32_t* visible = nullptr;
  int64_t tokens = 0;
  int splits = 1;            // from AttentionSplits: the number of blocks that share the keys of a query
  float* scratch = nullptr;  // SplitAttentionScratch floats; unused with one split
  float* out = nullptr;      // (tokens, heads * head_dim), not q
};
// The number of splits that fills the device if no query has more than `longest` keys.
int AttentionSplits(const AttentionShape& shape, int64_t tokens, int64_t longest, int multiprocessors);
int64_t SplitAttentionScratch(const AttentionShape& shape, int64_t tokens, int splits);
void AttendSplit(Stream stream, const SplitAttention& call);

// Queries begin .. begin + count - 1 of a batch; the i-th of them sees rows kv_begin .. kv_begin + past + i.
struct PackedSequence {
  int32_t begin = 0, count = 0, past = 0, kv_begin = 0;
};
// Whole sequences, bfloat16 or float16 throughout. Cost: 4 head_dim FLOP per head and pair of a query and a visible
// key. Keys and values are read once per block of 128 queries (64 queries if head_dim is 256).
struct PackedAttention {
  AttentionShape shape;
  ConstDeviceArray q;                         // (tokens, heads * head_dim)
  ConstDeviceArray keys, values;              // (rows, kv_heads * head_dim)
  const PackedSequence* sequences = nullptr;  // in device memory
  int64_t sequence_count = 0;
  int64_t longest = 0;  // the largest `count`
  DeviceArray out;      // (tokens, heads * head_dim), not q
};
void AttendPacked(Stream stream, const PackedAttention& call);

}  // namespace shiftrt::gpu
