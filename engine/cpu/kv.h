// SPDX-License-Identifier: Apache-2.0
// A KV cache in host memory.
#pragma once

#include <vector>

#include "engine/backend.h"

namespace shiftrt {

struct CpuKv : KvStorage {
  using KvStorage::KvStorage;
  // A slot of an attention has keys and values, and one of another mixer its state, if it has one, and the last inputs
  // of its convolution (kernels/gated_delta.h, kernels/short_convolution.h).
  struct Slot {
    Matrix<float> keys, values;  // (capacity, kv_dim)
    Buffer<float> state, rows;
    int64_t positions = 0;  // the state is that after so many
  };
  std::vector<Slot> slots;  // one per block whose mixer runs, in plan order
};

}  // namespace shiftrt
