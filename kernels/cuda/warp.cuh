// SPDX-License-Identifier: Apache-2.0
// Reductions over a warp and over a block, in a fixed order: the result does not depend on the scheduling of threads.
#pragma once

#include "kernels/cuda/platform.cuh"

namespace shiftrt::gpu {

// Every lane gets the sum. With a smaller `kLanes`, every group of that many adjacent lanes gets its own sum.
template <int kLanes = kWarpSize, typename T>
SHIFTRT_DEVICE T WarpSum(T value) {
  for (int step = kLanes / 2; step > 0; step /= 2) value += ShuffleXor(value, step);
  return value;
}

template <int kLanes = kWarpSize>
SHIFTRT_DEVICE float WarpMax(float value) {
  for (int step = kLanes / 2; step > 0; step /= 2) value = Larger(value, ShuffleXor(value, step));
  return value;
}

// The lanes in each four exchange words: word i of lane j becomes word j of lane i.
SHIFTRT_DEVICE void TransposeInFours(uint32_t (&words)[4]) {
  const bool odd = Lane() % 2 != 0, upper = Lane() % 4 >= 2;
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = ShuffleXor(odd ? words[i] : words[i + 1], 1);
    (odd ? words[i] : words[i + 1]) = other;
  }
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = ShuffleXor(upper ? words[i] : words[i + 2], 2);
    (upper ? words[i] : words[i + 2]) = other;
  }
}

struct Best {
  float value;
  int32_t index;
};
SHIFTRT_DEVICE Best Better(const Best& a, const Best& b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

// Every thread gets the best of the block: the largest value, the lowest index among equals. A NaN is never better.
// `values` and `indices` have one element per warp. There must be a barrier between two uses.
template <int kThreads>
SHIFTRT_DEVICE Best BlockBest(Best best, Shared<float> values, Shared<int32_t> indices) {
  for (int step = kWarpSize / 2; step > 0; step /= 2)
    best = Better(best, {ShuffleXor(best.value, step), ShuffleXor(best.index, step)});
  if (Lane() == 0) {
    values[Warp()] = best.value;
    indices[Warp()] = best.index;
  }
  SyncThreads();
  best = {values[0], indices[0]};
  for (int w = 1; w < kThreads / kWarpSize; ++w) best = Better(best, {values[w], indices[w]});
  return best;
}

// Every thread gets the sum over the block. `scratch` has one element per warp. There must be a barrier between two
// uses.
template <int kThreads, typename T>
SHIFTRT_DEVICE T BlockSum(T value, Shared<T> scratch) {
  value = WarpSum(value);
  if (Lane() == 0) scratch[Warp()] = value;
  SyncThreads();
  T sum = scratch[0];
  for (int w = 1; w < kThreads / kWarpSize; ++w) sum += scratch[w];
  return sum;
}

// Each thread of the first warp gets the sum over the warps of the values in its lane, added in their order. `scratch`
// has one element per thread.
template <int kThreads>
SHIFTRT_DEVICE float LaneSum(float value, Shared<float> scratch) {
  scratch[Thread()] = value;
  SyncThreads();
  if (Warp() == 0)
    for (int w = 1; w < kThreads / kWarpSize; ++w) value += scratch[w * kWarpSize + Lane()];
  return value;
}

// Every thread gets the sum over the threads before it. `scratch` is as above.
template <typename T>
SHIFTRT_DEVICE T BlockSumBefore(T value, Shared<T> scratch) {
  T sum = value;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const T before = Shuffle(sum, Lane() < step ? Lane() : Lane() - step);
    if (Lane() >= step) sum += before;
  }
  if (Lane() == kWarpSize - 1) scratch[Warp()] = sum;
  SyncThreads();
  sum -= value;
  for (int w = 0; w < Warp(); ++w) sum += scratch[w];
  return sum;
}

}  // namespace shiftrt::gpu
