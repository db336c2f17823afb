// SPDX-License-Identifier: Apache-2.0
// Declarations that host code and kernels share.
#pragma once

#include <cstdint>

#include "runtime/cuda/cuda.h"
#include "runtime/dtype.h"

namespace shiftrt::gpu {

struct Index3 {
  int x, y, z;
};

// The number of blocks of a launch, and the bytes of shared memory per block. A cooperative grid is resident as a
// whole, so its blocks may wait for each other.
struct Grid {
  int x = 1, y = 1, z = 1;
  int shared_bytes = 0;
  bool cooperative = false;
};

inline constexpr int kWarpSize = 32;
inline constexpr int kMostBlocksAlongZ = 65535;  // and along y
// Shared memory that a block can have on every architecture of the build: the 99 KiB of 8.9 (8.0 has 163, 9.0 has 227).
inline constexpr int kMaxSharedBytes = 99 * 1024;
// Limits of a kernel of hopper.cuh.
inline constexpr int kHopperSharedBytes = 227 * 1024;
inline constexpr uint32_t kFullWarp = 0xffffffffu;

// A kernel with a member `kWaits` of value true calls WaitForEarlier() itself, once in every thread. Before that, it
// may read only what no launch writes that may still be running, and write only its own shared memory.
template <typename K>
constexpr bool WaitsItself() {
  if constexpr (requires { K::kWaits; }) return K::kWaits;
  return false;
}

// A kernel with a member `kAllowsNext` of value true calls AllowNext() itself. Until all its blocks have done so or
// ended, the next launch does not start and takes no bandwidth.
template <typename K>
constexpr bool AllowsNextItself() {
  if constexpr (requires { K::kAllowsNext; }) return K::kAllowsNext;
  return false;
}

// A kernel for compute capability 9.0 alone (hopper.cuh) has a member `kHopper` of value true.
template <typename K>
constexpr bool ForHopper() {
  if constexpr (requires { K::kHopper; }) return K::kHopper;
  return false;
}
template <typename K>
constexpr int MostSharedBytes() {
  return ForHopper<K>() ? kHopperSharedBytes : kMaxSharedBytes;
}
// Blocks per multiprocessor that the compiler has to leave registers for: a member `kLeastBlocks` of the kernel, or 0,
// and the compiler decides. Only with a number is it sure of the registers at the start of a kernel, without which
// warpgroups cannot pass them on.
template <typename K>
constexpr int LeastBlocks() {
  if constexpr (requires { K::kLeastBlocks; }) return K::kLeastBlocks;
  return ForHopper<K>() ? 1 : 0;
}

// Such a kernel may have a member `kClusterBlocks`: so many blocks along x then form a cluster. More than 8 do not fit
// everywhere; ClusterFits() asks the device.
template <typename K>
constexpr int ClusterBlocks() {
  if constexpr (requires { K::kClusterBlocks; }) return K::kClusterBlocks;
  return 1;
}

// Bytes of shared memory that an array of `count` elements takes. Arrays start at multiples of 16.
template <typename T>
constexpr int SharedBytes(int count) {
  return (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

// The number of blocks that cover n items with `per_block` items per block.
constexpr int Blocks(int64_t n, int64_t per_block) { return static_cast<int>((n + per_block - 1) / per_block); }

// A dense array in device memory whose type is known at run time.
struct DeviceArray {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
};
struct ConstDeviceArray {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;

  ConstDeviceArray() = default;
  ConstDeviceArray(const void* data, DType dtype) : data(data), dtype(dtype) {}
  ConstDeviceArray(const DeviceArray& array) : data(array.data), dtype(array.dtype) {}
};

// Throws Error "operation: expected ..., found value". A function, because device code includes no formatting library.
[[noreturn]] void Refuse(const char* operation, const char* expected, int64_t found);
inline void Require(bool condition, const char* operation, const char* expected, int64_t found) {
  if (!condition) Refuse(operation, expected, found);
}

// Calls body(T()) with the type that `dtype` names. Throws Error for float64 and quantised types.
template <typename Body>
void WithType(const char* operation, DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat32: return body(float());
    case DType::kFloat16: return body(Float16());
    case DType::kBFloat16: return body(BFloat16());
    default:
      Refuse(operation, "float32, float16 or bfloat16, not elements or blocks of bytes",
             static_cast<int64_t>(SizeOf(dtype)));
  }
}

}  // namespace shiftrt::gpu
