// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/kv.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

KvPool::KvPool(std::shared_ptr<const StreamRows> stream, const std::vector<Mixer>& mixers, int64_t row_bytes,
               int64_t state_bytes)
    : stream_(std::move(stream)), row_bytes_(row_bytes), state_bytes_(state_bytes) {
  for (const Mixer mixer : mixers) {
    slots_.push_back({mixer});
    if (mixer == Mixer::kAttention) position_bytes_ += 2 * row_bytes;
  }
}

std::unique_ptr<KvStorage> KvPool::Make(int64_t capacity) {
  const std::lock_guard lock(changing_);
  caches_.reserve(caches_.size() + 1);
  int64_t first = 0;
  auto before = caches_.begin();
  for (; before != caches_.end() && (*before)->first < first + capacity; ++before)
    first = (*before)->first + (*before)->capacity;
  int64_t place = 0;
  while (std::any_of(caches_.begin(), caches_.end(), [&](const CudaKv* cache) { return cache->place == place; }))
    ++place;
  if (first + capacity > rows_ || place >= states_)
    Grow(std::max(rows_, first + capacity), std::max(states_, place + 1), capacity);
  auto cache = std::make_unique<CudaKv>(shared_from_this(), first, place, capacity);
  caches_.insert(before, cache.get());
  return cache;
}

// One array after the other, so that only one exists twice. If memory runs out, some have more rows than rows_ says.
void KvPool::Grow(int64_t rows, int64_t states, int64_t capacity) {
  const gpu::Stream stream = stream_->stream();
  int64_t grown = 0;
  const auto grow = [&](gpu::DeviceBuffer<std::byte>& array, int64_t bytes, int64_t kept) {
    if (array.size() >= bytes) return;
    ++version_;
    gpu::DeviceBuffer<std::byte> larger(stream, bytes, "the KV cache");
    if (kept > 0) gpu::CopyOnDevice(stream, larger.data(), array.data(), kept);
    array = std::move(larger);
    grown += bytes - kept;
  };
  try {
    for (Slot& slot : slots_) {
      if (slot.mixer == Mixer::kGatedDelta) {
        grow(slot.states, 2 * states * state_bytes_, 2 * states_ * state_bytes_);
        continue;
      }
      grow(slot.keys, rows * row_bytes_, rows_ * row_bytes_);
      grow(slot.values, rows * row_bytes_, rows_ * row_bytes_);
    }
  } catch (const OutOfMemory& error) {
    const int64_t room = error.free_bytes + grown;
    if (caches_.empty()) Clear();
    if (position_bytes_ == 0) throw OutOfMemory(error, "the states of one more sequence were asked for");
    throw OutOfMemory(error, fmt::format("a cache of {} positions was asked for, about {} would fit", capacity,
                                         room / position_bytes_));
  }
  rows_ = rows;
  states_ = states;
}

void KvPool::Leave(const CudaKv* cache) {
  const std::lock_guard lock(changing_);
  std::erase(caches_, cache);
  if (caches_.empty()) Clear();
}

void KvPool::Clear() {
  for (Slot& slot : slots_) slot = {slot.mixer};
  rows_ = states_ = 0;
  ++version_;
}

}  // namespace shiftrt
