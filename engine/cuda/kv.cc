// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/kv.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

std::unique_ptr<KvStorage> KvPool::Make(int64_t capacity) {
  const std::lock_guard lock(changing_);
  caches_.reserve(caches_.size() + 1);
  int64_t first = 0;
  auto before = caches_.begin();
  for (; before != caches_.end() && (*before)->first < first + capacity; ++before)
    first = (*before)->first + (*before)->capacity;
  if (first + capacity > rows_) Grow(first + capacity, capacity);
  auto cache = std::make_unique<CudaKv>(shared_from_this(), first, capacity);
  caches_.insert(before, cache.get());
  return cache;
}

// One array after the other, so that only one exists twice. If memory runs out, some have more rows than rows_ says.
void KvPool::Grow(int64_t rows, int64_t capacity) {
  const gpu::Stream stream = stream_->stream();
  ++version_;
  int64_t grown = 0;
  const auto grow = [&](gpu::DeviceBuffer<std::byte>& array) {
    if (array.size() >= rows * row_bytes_) return;
    gpu::DeviceBuffer<std::byte> larger(stream, rows * row_bytes_, "the KV cache");
    if (rows_ > 0) gpu::CopyOnDevice(stream, larger.data(), array.data(), rows_ * row_bytes_);
    array = std::move(larger);
    grown += (rows - rows_) * row_bytes_;
  };
  try {
    for (Slot& slot : slots_) {
      grow(slot.keys);
      grow(slot.values);
    }
  } catch (const OutOfMemory& error) {
    const int64_t room = error.free_bytes + grown;
    if (caches_.empty()) Clear();
    throw OutOfMemory(error, fmt::format("a cache of {} positions was asked for, about {} would fit", capacity,
                                         room / (2 * row_bytes_ * std::ssize(slots_))));
  }
  rows_ = rows;
}

void KvPool::Leave(const CudaKv* cache) {
  const std::lock_guard lock(changing_);
  std::erase(caches_, cache);
  if (caches_.empty()) Clear();
}

void KvPool::Clear() {
  for (Slot& slot : slots_) slot = {};
  rows_ = 0;
  ++version_;
}

}  // namespace shiftrt
