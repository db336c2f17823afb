// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/delta_ranges.h"

#include <algorithm>
#include <numeric>

#include "engine/cuda/kv.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

// The states that a call of `count` tokens reads and writes. The one that it reads stays, so that a sequence may stand
// in the call again.
gpu::DeltaRange RangeOf(CudaKv& cache, int64_t past, int64_t count) {
  const auto& [first, second] = cache.positions;
  Check(past == 0 || first == past || second == past,
        "the states of a gated delta network are those of {} and {} positions, and the call goes on from {}", first,
        second, past);
  const int before = past > 0 && second == past ? 1 : 0, after = 1 - before;
  cache.positions[after] = past + count;
  if (past == 0) cache.positions[before] = 0;
  const auto state = static_cast<int32_t>(2 * cache.place);
  return {.before = past > 0 ? state + before : -1, .after = state + after};
}

}  // namespace

DeltaRanges DeltaRangesOf(const LayerCall& call, const CallLayout& layout) {
  const auto count = std::ssize(layout.sequences);
  DeltaRanges of;
  std::vector<gpu::DeltaRange> ranges;
  for (int64_t s = 0; s < count; ++s) {
    const CallLayout::Sequence& sequence = layout.sequences[s];
    const int64_t parent = call.batch.parents[s];
    gpu::DeltaRange range{.before = parent >= 0 ? ranges[parent].after : -1, .after = -1};
    if (!call.continued.empty()) {
      const Continued& continued = call.continued[s];
      range = RangeOf(static_cast<CudaKv&>(*continued.cache), continued.past, sequence.count);
    } else if (sequence.is_parent) {
      // Without tokens, a sequence leaves the state that it goes on from.
      range.after = sequence.count > 0 ? static_cast<int32_t>(of.states++) : range.before;
    }
    range.begin = static_cast<int32_t>(sequence.begin);
    range.count = static_cast<int32_t>(sequence.count);
    ranges.push_back(range);
  }
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return layout.sequences[a].generation < layout.sequences[b].generation;
  });
  for (const int64_t s : order) {
    const CallLayout::Sequence& sequence = layout.sequences[s];
    if (sequence.generation == std::ssize(of.generations)) of.generations.push_back({.first = std::ssize(of.ranges)});
    DeltaGeneration& generation = of.generations.back();
    ++generation.count;
    generation.longest = std::max(generation.longest, sequence.count);
    of.ranges.push_back(ranges[s]);
  }
  return of;
}

}  // namespace shiftrt
