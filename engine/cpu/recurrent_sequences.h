// SPDX-License-Identifier: Apache-2.0
// The sequences of a call as a gated delta network or a short convolution takes them: what each of them goes on from, a
// cache or a parent, and where it leaves its state and its last rows.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "engine/backend.h"
#include "engine/cpu/kv.h"
#include "kernels/gated_delta.h"

namespace shiftrt {

class RecurrentSequences {
 public:
  // A state has so many floats, and the rows of a convolution so many.
  void Begin(const LayerCall& call, const CallLayout& layout, int64_t state_floats, int64_t row_floats);
  // The sequences that go on from nothing, or from the cache's `slot`; then those whose parents are among the ones
  // before; and so on. Throws Error if a state in a cache is not that of the positions which the call goes on from.
  const std::vector<std::vector<DeltaSequence>>& Of(int64_t slot);
  // The caches' states have advanced.
  void Done(int64_t slot);

 private:
  struct Sequence {
    int64_t begin, count, past, parent;
    CpuKv* cache;
    float *state, *rows;  // for those who go on from it; null: nobody
  };
  std::vector<Sequence> sequences_;
  std::vector<std::vector<size_t>> order_;
  std::vector<std::vector<DeltaSequence>> generations_;
  Buffer<float> of_parents_;
};

}  // namespace shiftrt
