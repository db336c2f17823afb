// SPDX-License-Identifier: Apache-2.0
// The caches of a decoder on a GPU. They are ranges of the rows of one array of keys and one of values per block, so
// that to the kernels the sequences of a call, which have a cache each, are rows of the same arrays.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend.h"
#include "engine/cuda/rows.h"

namespace shiftrt {

class CudaKv;

class KvPool : public std::enable_shared_from_this<KvPool> {
 public:
  // For blocks whose attention runs, `slots` in plan order. Make it with std::make_shared: its caches keep it alive.
  KvPool(std::shared_ptr<const StreamRows> stream, int64_t slots, int64_t row_bytes)
      : stream_(std::move(stream)), row_bytes_(row_bytes), slots_(slots) {}
  // A cache in the first gap that has room, or behind all others, for which the arrays grow. Throws OutOfMemory.
  std::unique_ptr<KvStorage> Make(int64_t capacity);

  // Keys and values of a block, (rows(), kv_dim).
  struct Slot {
    gpu::DeviceBuffer<std::byte> keys, values;
  };
  const Slot& slot(int64_t i) const { return slots_[i]; }
  int64_t rows() const { return rows_; }
  // Another number whenever the arrays were allocated anew.
  int64_t version() const { return version_; }

 private:
  friend class CudaKv;
  // To so many rows, for a cache of this capacity.
  void Grow(int64_t rows, int64_t capacity);
  void Leave(const CudaKv* cache);
  void Clear();  // without a cache, the arrays take no memory

  const std::shared_ptr<const StreamRows> stream_;  // the memory goes back to it
  const int64_t row_bytes_;
  std::mutex changing_;  // a cache may be destroyed by another thread
  std::vector<Slot> slots_;
  std::vector<const CudaKv*> caches_;  // in the order of their rows
  int64_t rows_ = 0, version_ = 0;
};

class CudaKv : public KvStorage {
 public:
  CudaKv(std::shared_ptr<KvPool> pool, int64_t first, int64_t capacity)
      : KvStorage(capacity), pool(std::move(pool)), first(first) {}
  ~CudaKv() override { pool->Leave(this); }

  const std::shared_ptr<KvPool> pool;
  const int64_t first;  // the row of its position 0
};

}  // namespace shiftrt
