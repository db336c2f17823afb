// SPDX-License-Identifier: Apache-2.0
// Checks and dispatch that both forms of attention share.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/platform.cuh"

namespace shiftrt::gpu {

inline constexpr float kLog2E = 1.44269504f;

// The logarithm of 2^maximum * sum.
SHIFTRT_DEVICE float LogSum(float maximum, float sum) { return maximum / kLog2E + Log(sum); }

// The term of a head's sink in such a sum; 0 without sinks. A sink far above all scores makes it infinite, and all
// weights 0.
SHIFTRT_DEVICE float SinkTerm(const float* sinks, int head, float maximum) {
  return sinks != nullptr ? Exp2(sinks[head] * kLog2E - maximum) : 0;
}

inline void RequireShape(const AttentionShape& shape) {
  Require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "attention",
          "a number of heads that is a multiple of the key-value heads", shape.heads);
  Require(shape.window >= 0, "attention", "a window of 0 keys, which means none, or more", shape.window);
  Require(shape.soft_cap >= 0, "attention", "a soft cap of 0, which means none, or more",
          static_cast<int64_t>(shape.soft_cap));
}

// The conversion of scores to exponents of two: multiply by `inner`, apply tanh if there is a cap, multiply by `outer`.
struct ScoreScales {
  float inner, outer;
};
inline ScoreScales ScalesOf(const AttentionShape& shape) {
  if (shape.soft_cap > 0) return {shape.scale / shape.soft_cap, shape.soft_cap * kLog2E};
  return {1, shape.scale * kLog2E};
}

// The first query of a block in a grid with the heads along x and tiles of `queries` queries along y. Blocks start in
// the order of x, then y: the tiles with the most keys start first, for all heads, so that short ones fill the end.
SHIFTRT_DEVICE int FirstQuery(int queries) { return (GridBlocks().y - 1 - Block().y) * queries; }

// AttendPacked() of a call that it has checked, by the kernel for warpgroups (attention_warpgroup.cu).
void AttendPackedByWarpgroups(Stream stream, const PackedAttention& call);

// Calls launch(first, blocks) for as many of `count` sequences at a time as a grid has blocks along z.
template <typename Body>
void ForSequences(int64_t count, Body&& launch) {
  for (int64_t first = 0; first < count; first += kMostBlocksAlongZ)
    launch(first, static_cast<int>(count - first < kMostBlocksAlongZ ? count - first : kMostBlocksAlongZ));
}

// Calls body(std::integral_constant<int, head_dim>()).
template <typename Body>
void WithHeadDim(int head_dim, Body&& body) {
  switch (head_dim) {
    case 64: return body(std::integral_constant<int, 64>());
    case 80: return body(std::integral_constant<int, 80>());
    case 96: return body(std::integral_constant<int, 96>());
    case 128: return body(std::integral_constant<int, 128>());
    case 256: return body(std::integral_constant<int, 256>());
    default: Refuse("attention", "a head dimension of 64, 80, 96, 128 or 256", head_dim);
  }
}

}  // namespace shiftrt::gpu
