// What host code and kernels both know of a launch.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace shiftrt::gpu {

using Stream = CUstream_st*;

struct Index3 {
  int x, y, z;
};

// How many blocks of a kernel run, and the bytes of shared memory each asks for. A cooperative grid is resident as a
// whole, so its blocks may wait for each other.
struct Grid {
  int x = 1, y = 1, z = 1;
  int shared_bytes = 0;
  bool cooperative = false;
};

inline constexpr int kWarpSize = 32;
inline constexpr uint32_t kFullWarp = 0xffffffffu;

// Bytes that `count` elements take of a block's shared memory: arrays start at multiples of 16.
template <typename T>
constexpr int SharedBytes(int count) {
  return (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

}  // namespace shiftrt::gpu
