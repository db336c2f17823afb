// SPDX-License-Identifier: Apache-2.0
// Prefetching of weights that stream from memory. Everything is in an anonymous namespace on purpose, as in
// simd_body_impl.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shiftrt {
namespace {

constexpr int64_t kCacheLine = 64;

// Prefetches the bytes that lie `ahead` of the `count` bytes from `at` on, into the second-level cache. The first-level
// cache waits for too few lines at a time (docs/dev/cpu.md#quantised-weights).
[[gnu::always_inline]] inline void PrefetchAhead(const void* at, int64_t count, int64_t ahead) {
  constexpr int kSecondLevel = 2;
  const auto* const from = static_cast<const std::byte*>(at) + ahead;
  for (int64_t line = 0; line < count; line += kCacheLine) __builtin_prefetch(from + line, 0, kSecondLevel);
}

}  // namespace
}  // namespace shiftrt
