// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit elements in shared memory as compute capability 9.0 copies and multiplies them, and how they are
// described to the hardware. Host code, kernels and the emulator share this file; hopper.cuh has the instructions.
//
// A tile is a number of boxes, one after the other. A box has 64 columns, and a row of it takes 128 bytes. Boxes start
// at multiples of 1,024 bytes and are swizzled: of the eight 16-byte pieces of row r, piece p is stored in place
// p ^ (r % 8). Reading eight rows at one column, or eight pieces of one row, then touches every bank once. This is the
// 128-byte swizzle of the PTX manual ("Swizzling modes" of tensor copies, "Shared memory matrix layout" of wgmma).
#pragma once

#include <cstdint>

#include "kernels/cuda/grid.h"
#include "runtime/cuda/switches.h"

namespace shiftrt::gpu {

inline constexpr int kBoxColumns = 64, kBoxRowBytes = 128, kBoxAlignment = 1024;
inline constexpr int kMostBoxRows = 256;

// The place of a byte of a tile, given the address that it would have without the swizzle.
constexpr uint32_t Swizzled(uint32_t address) { return address ^ (address >> 3 & 0x70); }

// The 64-bit descriptor of a matrix in shared memory ("Matrix descriptor format" of wgmma in the PTX manual): bits 0-13
// the address, 16-29 the leading and 32-45 the stride dimension byte offset, each without its lowest four bits; 49-51
// the base offset, which is 0 if boxes are aligned; 62-63 the swizzle, where 1 means 128 bytes.
constexpr uint64_t DescribeMatrix(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  constexpr uint64_t kField = 0x3fff, kSwizzle128 = 1;
  return (address >> 4 & kField) | (leading_bytes >> 4 & kField) << 16 | (stride_bytes >> 4 & kField) << 32 |
         kSwizzle128 << 62;
}
// Rows of a box as the rows of an operand, with 16 of its columns as the dimension that is summed over ("K-major"). The
// stride leads to the next eight rows. The leading offset has no meaning here; the manual asks for 1.
constexpr uint64_t DescribeRows(uint32_t address) { return DescribeMatrix(address, 1 << 4, 8 * kBoxRowBytes); }
// Columns of boxes as the rows of an operand, with 16 rows as the dimension that is summed over ("MN-major"). The
// leading offset leads to the next box, which has the next 64 columns, and the stride to the next eight rows.
constexpr uint64_t DescribeColumns(uint32_t address, uint32_t box_bytes) {
  return DescribeMatrix(address, box_bytes, 8 * kBoxRowBytes);
}

// The description of a matrix in global memory from which boxes are copied: the arguments of cuTensorMapEncodeTiled in
// its order, the innermost dimension first.
struct BoxEncoding {
  DType dtype = DType::kBFloat16;
  const void* data = nullptr;
  uint64_t sizes[2] = {};  // columns, rows
  uint64_t row_bytes = 0;
  uint32_t box[2] = {};
};
// For boxes of `box_rows` rows of a dense (rows, columns) matrix. Throws Error for what the hardware cannot copy.
inline BoxEncoding EncodeBoxes(ConstDeviceArray matrix, int64_t rows, int64_t columns, int box_rows) {
  constexpr const char* kWhat = "copies of boxes";
  constexpr int64_t kMostRows = int64_t{1} << 32;
  const auto size = static_cast<int64_t>(SizeOf(matrix.dtype));
  Require(size == 2, kWhat, "elements of 2 bytes", size);
  Require(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0, kWhat, "a matrix at a multiple of 16 bytes, not of",
          static_cast<int64_t>(reinterpret_cast<uintptr_t>(matrix.data) % 16));
  Require(rows > 0 && rows <= kMostRows, kWhat, "1 to 2^32 rows", rows);
  Require(columns > 0 && columns % kBoxColumns == 0 && columns <= kMostRows, kWhat, "columns in multiples of 64",
          columns);
  Require(box_rows > 0 && box_rows <= kMostBoxRows, kWhat, "boxes of 1 to 256 rows", box_rows);
  return {matrix.dtype,
          matrix.data,
          {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
          static_cast<uint64_t>(columns * size),
          {kBoxColumns, static_cast<uint32_t>(box_rows)}};
}

// A matrix in global memory as the copy engine reads it, passed to a kernel within its arguments. Opaque.
struct alignas(64) BoxMap {
  uint64_t words[16];
};
// Throws Error if the driver refuses.
BoxMap MapBoxes(const BoxEncoding& encoding);

// True if kernels of hopper.cuh run on the device: they are compiled for compute capability 9.0 alone, and the driver
// must be able to encode a BoxMap.
bool RunsHopperKernels(int device);
// The same of those with products of warpgroups, unless the environment variable SHIFTRT_CUDA_WGMMA is 0.
inline bool RunsWarpgroupProducts(int device) {
  return SwitchedOn("SHIFTRT_CUDA_WGMMA", true) && RunsHopperKernels(device);
}

}  // namespace shiftrt::gpu
