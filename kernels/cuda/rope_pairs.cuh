// SPDX-License-Identifier: Apache-2.0
// The pairs of a head's elements that RoPE rotates (RopeLayout in kernels/rope.h), for kernels.
#pragma once

#include "kernels/cuda/platform.cuh"
#include "kernels/cuda/rope.h"

namespace shiftrt::gpu {

struct RopePairs {
  int half, rotated;  // the pairs of a head, and those that are rotated, which come first
  bool interleaved;

  static RopePairs Of(const RopeTable& table, int64_t head_dim) {
    const int half = static_cast<int>(head_dim) / 2;
    return {half, table.rotary_dim > 0 ? table.rotary_dim / 2 : half, table.interleaved};
  }
  SHIFTRT_DEVICE int First(int pair) const { return pair >= rotated ? rotated + pair : interleaved ? 2 * pair : pair; }
  SHIFTRT_DEVICE int Second(int pair) const {
    return pair >= rotated ? half + pair : interleaved ? 2 * pair + 1 : rotated + pair;
  }
};

}  // namespace shiftrt::gpu
