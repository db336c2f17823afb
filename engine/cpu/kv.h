// SPDX-License-Identifier: Apache-2.0
// A KV cache in host memory.
#pragma once

#include <vector>

#include "engine/backend.h"

namespace shiftrt {

struct CpuKv : KvStorage {
  using KvStorage::KvStorage;
  struct Slot {
    Matrix<float> keys, values;  // (capacity, kv_dim)
  };
  std::vector<Slot> slots;  // one per block whose attention runs, in plan order
};

}  // namespace shiftrt
