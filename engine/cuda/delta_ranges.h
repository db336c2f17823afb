// SPDX-License-Identifier: Apache-2.0
// The sequences of a call as the kernels of gated delta networks take them (kernels/cuda/gated_delta.h): which state
// each of them goes on from, and which one it leaves.
#pragma once

#include <vector>

#include "engine/backend.h"
#include "kernels/cuda/gated_delta.h"

namespace shiftrt {

// The sequences that go on from nothing, or from a cache; or those whose parents are among the ones before; and so on.
struct DeltaGeneration {
  int64_t first = 0, count = 0, longest = 0;  // the sequences, and the tokens of the longest
};

struct DeltaRanges {
  std::vector<gpu::DeltaRange> ranges;  // by generation
  std::vector<DeltaGeneration> generations;
  // The states that the call needs itself, of sequences with children. Those of a call with caches are the caches'.
  int64_t states = 0;
};

// Makes the states that the call leaves those of its caches. Throws Error if a cache has no state of the positions that
// the call goes on from.
DeltaRanges DeltaRangesOf(const LayerCall& call, const CallLayout& layout);

}  // namespace shiftrt
