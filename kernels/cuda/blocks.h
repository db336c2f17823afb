// SPDX-License-Identifier: Apache-2.0
// Weight matrices in device memory whose parts may have different types, quantised ones among them.
//
// The blocks of a quantised matrix are taken apart into planes: the quantised numbers of all blocks, then their scales.
// That is the same number of bytes as in the file. A GGUF block has 18, 34, 144 or 210 bytes, so that in the file's
// order most blocks lie at addresses from which a thread can load no more than two bytes at once; in a plane every load
// of 8 or 16 bytes is aligned.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// A part of every block of a type: so many bytes from `offset` on.
struct BlockPlane {
  int offset = 0, bytes = 0;
};
inline constexpr int kMostPlanes = 4;
// The planes of a type in the order in which they lie in memory; those behind the last have no bytes. All are empty for
// a type whose blocks the kernels do not read.
constexpr std::array<BlockPlane, kMostPlanes> PlanesOf(DType type) {
  switch (type) {
    case DType::kQ4_0: return {{{2, 16}, {0, 2}}};
    case DType::kQ8_0: return {{{2, 32}, {0, 2}}};
    case DType::kQ4_K: return {{{16, 128}, {0, 16}}};
    case DType::kQ6_K: return {{{0, 128}, {128, 64}, {192, 16}, {208, 2}}};
    default: return {};
  }
}
constexpr bool TakesBlocks(DType type) { return PlanesOf(type)[0].bytes > 0; }

// Copies one plane of `count` blocks of this type to `out`.
inline void GatherPlane(DType type, const BlockPlane& plane, const std::byte* blocks, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(out + i * plane.bytes, blocks + i * LayoutOf(type).bytes + plane.offset,
                static_cast<size_t>(plane.bytes));
}

// Rows of a matrix of one type that is dense, or in planes, which begin at a multiple of 16 bytes.
struct WeightPart {
  ConstDeviceArray array;       // the matrix
  int64_t matrix_rows = 0;      // as many rows has the matrix
  int64_t first = 0, rows = 0;  // the rows that are meant

  WeightPart Rows(int64_t begin, int64_t count) const { return {array, matrix_rows, first + begin, count}; }
};

// A matrix (rows, cols) of up to three parts, one below the other. Either all is dense and of one type, and `plain` is
// its memory, or `plain` is null, and the parts have types that TakesBlocks() accepts, or are dense in bfloat16.
struct WeightRows {
  ConstDeviceArray plain;
  std::array<WeightPart, 3> parts = {};
  int count = 0;  // the number of parts; a matrix without quantised parts need not name them

  WeightRows() = default;
  WeightRows(const void* data, DType dtype) : plain(data, dtype) {}
  WeightRows(const ConstDeviceArray& array) : plain(array) {}  // NOLINT(google-explicit-constructor)
  WeightRows(const DeviceArray& array) : plain(array) {}       // NOLINT(google-explicit-constructor)
  bool quantised() const { return plain.data == nullptr && count > 0; }
  // Some of the rows, each of `cols` columns, of a matrix that is plain or has one part.
  WeightRows Rows(int64_t begin, int64_t rows, int64_t cols) const {
    WeightRows some = *this;
    if (quantised()) {
      Require(count == 1, "rows of a quantised matrix", "one part", count);
      some.parts[0] = parts[0].Rows(begin, rows);
    } else {
      some.plain.data =
          static_cast<const std::byte*>(plain.data) + begin * cols * static_cast<int64_t>(SizeOf(plain.dtype));
    }
    return some;
  }
  // The type of activations and of cached keys and values that belong to it.
  DType dtype() const { return quantised() ? DType::kBFloat16 : plain.dtype; }
};

// The most tokens of MultiplyFew().
inline constexpr int64_t kFewTokens = 32;

// y (m, n) = x (m, k) W' (+ y), for 1 to kFewTokens rows. W (n, k) is bfloat16, float16 or quantised, x of the type of
// W, or bfloat16 for quantised W, and y of that type or float32. k: a multiple of 8, or whole blocks. Quantised W is
// dequantised in registers, in float32, and rounded to bfloat16, as ExpandRows() does; sums are float32. The bits of a
// row of y depend on its row of x and on W alone. Rows of x and W are dense, those of y are `y_stride` elements apart
// (0: dense).
// Cost: reads W once, and x once per block of threads; 2 m n k FLOP on the tensor cores.
struct FewProblem {
  ConstDeviceArray x;
  WeightPart w;
  DeviceArray y = {};
  int64_t m = 0, k = 0;
  bool accumulate = false;
  int64_t y_stride = 0;
};
void MultiplyFew(Stream stream, const FewProblem& problem, int multiprocessors);

// The number of tiles of 16 rows that a block of MultiplyFew() has: two, which halves the reads of x, if there is then
// still a block for every multiprocessor.
int ChooseFewTiles(int64_t rows, int multiprocessors);

// to (rows, cols) = the rows of a quantised part, times `scale`, dequantised in float32 and rounded once to the type of
// `to`, bfloat16 or float32. Rows are dense. With `rows`, row i of `to` is row rows[i] of the part instead; they are in
// device memory, to_rows many. Bytes: those of the blocks, and of `to`.
void ExpandRows(Stream stream, const WeightPart& part, int64_t cols, const DeviceArray& to,
                const int32_t* rows = nullptr, int64_t to_rows = 0, float scale = 1);

}  // namespace shiftrt::gpu
