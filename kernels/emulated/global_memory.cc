// SPDX-License-Identifier: Apache-2.0
#include "kernels/emulated/global_memory.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <utility>

#include "kernels/emulated/machine.h"

namespace shiftrt::emu {

namespace {

struct Allocation {
  int64_t bytes;
  int device;
  bool written = false;  // by launches that may still be running
};
std::map<void*, Allocation> allocations;
std::vector<std::function<void()>> deferred;

bool Same(const void* now, const std::vector<std::byte>& saved) {
  return saved.empty() || std::memcmp(now, saved.data(), saved.size()) == 0;
}

}  // namespace

void* Allocate(int64_t bytes, int device) {
  void* p = ::operator new(static_cast<size_t>(bytes));
  std::memset(p, kPoison, static_cast<size_t>(bytes));
  allocations[p] = {.bytes = bytes, .device = device};
  return p;
}

int64_t AllocatedBytes(int device) {
  int64_t bytes = 0;
  for (const auto& [p, allocation] : allocations) bytes += allocation.device == device ? allocation.bytes : 0;
  return bytes;
}

void CheckWords(int device, const void* object, size_t bytes, const std::string& who) {
  for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    std::byte* word = nullptr;
    std::memcpy(&word, static_cast<const std::byte*>(object) + at, sizeof(word));
    const auto above = allocations.upper_bound(word);
    if (above == allocations.begin()) continue;
    const auto& [begin, allocation] = *std::prev(above);
    if (allocation.device != device && word - static_cast<std::byte*>(begin) < allocation.bytes)
      throw KernelError(who + ": on device " + std::to_string(device) + " with memory of device " +
                        std::to_string(allocation.device));
  }
}

void Defer(std::function<void()> copy) { deferred.push_back(std::move(copy)); }

void MakeDeferred() {
  for (const auto& copy : std::exchange(deferred, {})) copy();
}

void Free(void* p) noexcept {
  MakeDeferred();  // a pending copy may have this memory as its destination
  allocations.erase(p);
  ::operator delete(p);
}

Snapshot::Snapshot() {
  for (const auto& [p, allocation] : allocations) {
    const auto* data = static_cast<const std::byte*>(p);
    saved_[p].assign(data, data + allocation.bytes);
  }
}

void Snapshot::Restore() const {
  for (const auto& [p, bytes] : saved_) std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(p));
}

void Snapshot::CheckSame(const std::string& kernel) const {
  for (const auto& [p, bytes] : saved_) {
    if (Same(p, bytes)) continue;
    const auto changed = std::mismatch(bytes.begin(), bytes.end(), static_cast<const std::byte*>(p)).first;
    throw KernelError(kernel + ": the order of threads changes byte " + std::to_string(changed - bytes.begin()) +
                      " of an allocation of " + std::to_string(bytes.size()));
  }
}

void Snapshot::MarkWritten() const {
  for (auto& [p, allocation] : allocations) allocation.written |= !Same(p, saved_.at(p));
}

void Finish() {
  for (auto& [p, allocation] : allocations) allocation.written = false;
}

void Withheld::Take() {
  for (const auto& [p, allocation] : allocations) {
    if (!allocation.written) continue;
    auto* const data = static_cast<std::byte*>(p);
    held_[data].assign(data, data + allocation.bytes);
    std::memset(data, kPoison, static_cast<size_t>(allocation.bytes));
  }
}

void Withheld::GiveBack() {
  for (const auto& [to, bytes] : std::exchange(held_, {})) std::copy(bytes.begin(), bytes.end(), to);
}

bool Withheld::Holds(const void* p) const {
  return std::any_of(held_.begin(), held_.end(),
                     [p](const auto& held) { return p >= held.first && p < held.first + held.second.size(); });
}

}  // namespace shiftrt::emu
