// Reductions over a warp and over a block, in one fixed order: the result does not depend on how threads are scheduled.
#pragma once

#include "kernels/cuda/platform.cuh"

namespace shiftrt::gpu {

// Every lane gets the sum. With a smaller `kLanes`, every group of that many neighbours gets its own.
template <int kLanes = kWarpSize, typename T>
SHIFTRT_DEVICE T WarpSum(T value) {
  for (int step = kLanes / 2; step > 0; step /= 2) value += ShuffleXor(value, step);
  return value;
}

// NaN wins, as it does in no instruction of the hardware's.
SHIFTRT_DEVICE float Larger(float a, float b) { return a > b || a != a ? a : b; }

template <int kLanes = kWarpSize>
SHIFTRT_DEVICE float WarpMax(float value) {
  for (int step = kLanes / 2; step > 0; step /= 2) value = Larger(value, ShuffleXor(value, step));
  return value;
}

// Every thread gets the sum over the block. `scratch` holds a value a warp; a barrier must stand between two uses.
template <int kThreads, typename T>
SHIFTRT_DEVICE T BlockSum(T value, Shared<T> scratch) {
  value = WarpSum(value);
  if (Lane() == 0) scratch[Warp()] = value;
  SyncThreads();
  T sum = scratch[0];
  for (int w = 1; w < kThreads / kWarpSize; ++w) sum += scratch[w];
  return sum;
}

}  // namespace shiftrt::gpu
