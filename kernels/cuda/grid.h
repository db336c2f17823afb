// What host code and kernels both know of a launch.
#pragma once

#include <cstdint>

#include "runtime/cuda/cuda.h"
#include "runtime/dtype.h"

namespace shiftrt::gpu {

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
inline constexpr int kMostBlocksAlongZ = 65535;  // and along y
// What a block can have on every architecture of the build: 99 KiB from 8.9 (163 from 8.0, 227 from 9.0).
inline constexpr int kMaxSharedBytes = 99 * 1024;
inline constexpr uint32_t kFullWarp = 0xffffffffu;

// A kernel may have an `Ahead(args)`, for hints alone: where the device lets launches overlap it runs while those
// before may still be running, so it must not write, and what it reads is of no consequence.
template <typename K>
concept RunsAhead = requires(const typename K::Args& args) {
  K::Ahead(args);
};

// Bytes that `count` elements take of a block's shared memory: arrays start at multiples of 16.
template <typename T>
constexpr int SharedBytes(int count) {
  return (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

// Blocks that cover n things, `per_block` each.
constexpr int Blocks(int64_t n, int64_t per_block) { return static_cast<int>((n + per_block - 1) / per_block); }

// A dense array in device memory, of a type known when it runs.
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

// Throws Error "operation: expected ..., found value" (no formatting library may enter device code's files).
[[noreturn]] void Refuse(const char* operation, const char* expected, int64_t found);
inline void Require(bool condition, const char* operation, const char* expected, int64_t found) {
  if (!condition) Refuse(operation, expected, found);
}

// Calls body(T()) with the type that `dtype` names. Throws Error for float64.
template <typename Body>
void WithType(const char* operation, DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat32: return body(float());
    case DType::kFloat16: return body(Float16());
    case DType::kBFloat16: return body(BFloat16());
    case DType::kFloat64: Refuse(operation, "float32, float16 or bfloat16, not bits", 64);
  }
}

}  // namespace shiftrt::gpu
