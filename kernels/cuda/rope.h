// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (kernels/rope.h), fused with all other steps between the product that computes queries,
// keys and values and attention: bias, norms of the heads, and the write into the KV cache. Cost: reads the
// product's output once, writes queries and cache rows once; one launch.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// The rotation of each position: cosine and sine (positions, head_dim / 2) of each pair of elements; null: no rotation.
// The pairs are those of RopeLayout (kernels/rope.h).
struct RopeTable {
  const float* cosine = nullptr;
  const float* sine = nullptr;
  const float* query_scale = nullptr;  // (positions): a factor on rotated queries; null: none
  int rotary_dim = 0;                  // the elements of a head that are rotated; 0: all
  bool interleaved = false;
};
// Fills rows 0 .. positions - 1 with cosine and sine of position * inverse_frequency[i], times `scale` unless the
// frequency is 0. inverse_frequency (half) is in device memory. Angles are float64.
void MakeRopeTable(Stream stream, int64_t positions, const float* inverse_frequency, int64_t half, float scale,
                   float* cosine, float* sine);

struct QueryKeyValue {
  ConstDeviceArray qkv;           // (tokens, (heads + 2 kv_heads) * head_dim): queries, keys, values
  bool gated = false;             // the gate of each query head, which is not read, stands behind it
  const float* bias = nullptr;    // the same columns; may be null
  const float* q_norm = nullptr;  // (head_dim), with k_norm; null: no head norms
  const float* k_norm = nullptr;
  float eps = 0;
  RopeTable table;
  bool back = false;                    // by the opposite angles: the gradient
  const int32_t* positions = nullptr;   // (tokens)
  const int32_t* cache_rows = nullptr;  // (tokens): the row of `keys` and `values` for each token; null: its own
  int64_t tokens = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  DeviceArray q;                       // (tokens, heads * head_dim), in the type of qkv; may be qkv if kv_heads is 0
  BFloat16* rounded = nullptr;         // (tokens, heads * head_dim): also the queries; may be null
  DeviceArray keys = {}, values = {};  // (rows, kv_heads * head_dim), one type
};
void RopeAndStore(Stream stream, const QueryKeyValue& step);

// Adds the bias of queries, keys and values unless it is null, and norms the queries of each token, and its keys, over
// all heads together: in place, and before RopeAndStore without bias and norms. Cost: reads and writes queries and
// keys, and with a bias values, once; one launch.
struct WholeNorms {
  DeviceArray qkv;                // (tokens, q_dim + 2 kv_dim): queries, keys, values
  const float* bias = nullptr;    // the same columns
  const float* q_norm = nullptr;  // (q_dim)
  const float* k_norm = nullptr;  // (kv_dim)
  float eps = 0;
  int64_t tokens = 0, q_dim = 0, kv_dim = 0;
};
void NormQueriesKeys(Stream stream, const WholeNorms& norms);

}  // namespace shiftrt::gpu
