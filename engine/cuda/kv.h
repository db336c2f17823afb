// SPDX-License-Identifier: Apache-2.0
// The caches of a decoder on a GPU. They are ranges of the rows of one array of keys and one of values per block, so
// that to the kernels the sequences of a call, which have a cache each, are rows of the same arrays. Of a gated delta
// network, a cache has two states in an array of states (kernels/cuda/gated_delta.h), of which a call reads one and
// writes the other: a sequence that stands in a call twice leaves the same as one that does so once.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend.h"
#include "engine/cuda/rows.h"

namespace shiftrt {

class CudaKv;

class KvPool : public std::enable_shared_from_this<KvPool> {
 public:
  // For the mixers of the blocks that run one, in plan order. Make it with std::make_shared: its caches keep it alive.
  KvPool(std::shared_ptr<const StreamRows> stream, const std::vector<Mixer>& mixers, int64_t row_bytes,
         int64_t state_bytes);
  // A cache in the first gap that has room, or behind all others, for which the arrays grow. Throws OutOfMemory.
  std::unique_ptr<KvStorage> Make(int64_t capacity);

  // Keys and values of a block, (rows(), kv_dim), or the states of its gated delta network.
  struct Slot {
    Mixer mixer;
    gpu::DeviceBuffer<std::byte> keys = {}, values = {}, states = {};
  };
  const Slot& slot(int64_t i) const { return slots_[i]; }
  int64_t rows() const { return rows_; }
  bool recurrent() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.mixer == Mixer::kGatedDelta; });
  }
  // Another number whenever the arrays were allocated anew.
  int64_t version() const { return version_; }

 private:
  friend class CudaKv;
  // To so many rows, and the states of so many caches, for a cache of this capacity.
  void Grow(int64_t rows, int64_t states, int64_t capacity);
  void Leave(const CudaKv* cache);
  void Clear();  // without a cache, the arrays take no memory

  const std::shared_ptr<const StreamRows> stream_;  // the memory goes back to it
  const int64_t row_bytes_, state_bytes_;
  int64_t position_bytes_ = 0;  // the keys and values of a position in all slots
  std::mutex changing_;         // a cache may be destroyed by another thread
  std::vector<Slot> slots_;
  std::vector<const CudaKv*> caches_;  // in the order of their rows
  int64_t rows_ = 0, states_ = 0, version_ = 0;
};

class CudaKv : public KvStorage {
 public:
  CudaKv(std::shared_ptr<KvPool> pool, int64_t first, int64_t place, int64_t capacity)
      : KvStorage(capacity), pool(std::move(pool)), first(first), place(place) {}
  ~CudaKv() override { pool->Leave(this); }

  const std::shared_ptr<KvPool> pool;
  const int64_t first;                    // the row of its position 0
  const int64_t place;                    // its states are the arrays' 2 place and 2 place + 1, if there are any
  std::array<int64_t, 2> positions = {};  // they are those after so many positions
};

}  // namespace shiftrt
