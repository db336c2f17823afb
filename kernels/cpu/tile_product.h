// SPDX-License-Identifier: Apache-2.0
// Products on a unit for bfloat16 matrices, as accurate as in float32. A float32 is the sum of three bfloat16 numbers
// (3 x 8 = 24 bits) and a float16 of two. A product is therefore the sum of a few products of bfloat16 matrices, which
// the unit adds up in float32. Templated over the tile operations: AmxTiles (simd_amx.cc) or EmulatedTiles. Everything
// is in an anonymous namespace on purpose, as in simd_body_impl.h.
//
// Each part is at most 2^-8 of the one before. Products of parts whose numbers, counted from 0, add up to more than 2
// are left out: each is at most 2^-24 of the whole.
//
// Rounded products (kernels/matmul.h) have one part of each operand, which is rounded to it.
#pragma once

#include <type_traits>

#include "kernels/cpu/bfloat16_words.h"

namespace shiftrt {
namespace {

constexpr int kParts = 3;                             // of a float32
constexpr int64_t kTileSide = kLanes;                 // rows of a tile, and float32 columns of a tile of sums
constexpr int64_t kTileElements = kTileSide * kStep;  // of bfloat16
// A panel of W with one part takes 36 KiB of the 48 KiB of the first-level cache, and the rows of x that are packed at
// a time 864 KiB of the 2 MiB of the second. Measured: fewer passes over y are worth more than a smaller panel.
constexpr int64_t kPanelDepth = 576;  // over all parts
constexpr int64_t kPackedRows = 256;  // of W with one part: the depth of a panel is divided by their number

// x = parts[0] + parts[1] + parts[2] exactly, each with the 8 significant bits of bfloat16 and rounded to nearest. An
// infinity is a first part alone. A NaN is one in some part. Values so large that they would round to infinity are
// truncated instead.
inline void Split(SixteenFloats x, Bits (&parts)[kParts]) {
  const Bits bits = (Bits)x, size = bits & 0x7fffffffu;
  parts[0] = (bits + (size < 0x7f7f8000u ? Bits{} + 0x8000u : Bits{})) & 0xffff0000u;
  const SixteenFloats rest = size == 0x7f800000u ? SixteenFloats{} : x - (SixteenFloats)parts[0];
  parts[1] = ((Bits)rest + 0x8000u) & 0xffff0000u;
  parts[2] = (Bits)(rest - (SixteenFloats)parts[1]);
}

// The first kCount parts of x, or the rounded x if kCount is 1.
template <int kCount>
inline void SplitInto(SixteenFloats x, Bits (&parts)[kParts]) {
  if constexpr (kCount == 1) {
    parts[0] = Rounded(x);
  } else {
    Split(x, parts);
  }
}

// The parts of 32 elements.
template <int kCount, typename T>
inline void LoadParts(const T* from, int64_t count, Words (&parts)[kCount]) {
  SixteenFloats x[2];
  LoadStep(from, count, x);
  Bits low[kParts], high[kParts];
  SplitInto<kCount>(x[0], low);
  SplitInto<kCount>(x[1], high);
  for (int part = 0; part < kCount; ++part) parts[part] = UpperHalves(low[part], high[part]);
}

inline void LoadParts(const BFloat16* from, int64_t count, Words (&parts)[1]) {
  BFloat16 ends[kStep] = {};
  if (count < kStep) {
    std::copy_n(from, count, ends);
    from = ends;
  }
  std::memcpy(&parts[0], from, sizeof parts[0]);
}

// Packs rows of x as packed[step][part][row][k within the step].
template <int kCount>
void PackTileRows(const float* x, int64_t stride, int64_t rows, int64_t depth, void* packed) {
  auto* out = static_cast<uint16_t*>(packed);
  for (int64_t k = 0; k < depth; k += kStep, out += kCount * kTileElements) {
    for (int64_t i = 0; i < kTileSide; ++i) {
      Words parts[kCount] = {};
      if (i < rows) LoadParts(x + i * stride + k, depth - k, parts);
      // The next rows are packed next.
      for (int64_t line = 0; line < kStep; line += kTileSide)
        __builtin_prefetch(x + (i + kTileSide) * stride + k + line);
      for (int part = 0; part < kCount; ++part)
        std::memcpy(out + part * kTileElements + i * kStep, &parts[part], sizeof parts[part]);
    }
  }
}

// Packs columns of x in the layout of PackTileRows.
template <int kCount>
void PackTileColumns(const float* x, int64_t stride, int64_t rows, int64_t depth, void* packed) {
  auto* out = static_cast<uint16_t*>(packed);
  for (int64_t k = 0; k < depth; k += kStep, out += kCount * kTileElements) {
    SixteenFloats halves[2][kTileSide] = {};
    for (int half = 0; half < 2; ++half) {
      const int64_t first = k + half * kTileSide;
      for (int64_t i = 0; i < std::min(kTileSide, depth - first); ++i)
        halves[half][i] = LoadColumns(x + (first + i) * stride, rows);
      Transpose16(halves[half]);
    }
    for (int64_t i = 0; i < kTileSide; ++i) {
      Bits low[kParts], high[kParts];
      SplitInto<kCount>(halves[0][i], low);
      SplitInto<kCount>(halves[1][i], high);
      for (int part = 0; part < kCount; ++part) {
        const Words words = UpperHalves(low[part], high[part]);
        std::memcpy(out + part * kTileElements + i * kStep, &words, sizeof words);
      }
    }
  }
}

// Packs columns as packed[step][part][half of the columns][pair of k][column][k within the pair].
template <int kCount, typename T>
void PackTilePanelOf(const T* w, int64_t stride, int64_t cols, int64_t depth, uint16_t* out) {
  for (int64_t k = 0; k < depth; k += kStep, out += 2 * kTileElements * kCount) {
    for (int half = 0; half < 2; ++half) {
      SixteenInts pairs[kCount][kTileSide];
      for (int64_t j = 0; j < kTileSide; ++j) {
        Words parts[kCount] = {};
        const int64_t column = half * kTileSide + j;
        if (column < cols) LoadParts(w + column * stride + k, depth - k, parts);
        for (int part = 0; part < kCount; ++part) pairs[part][j] = (SixteenInts)parts[part];
      }
      for (int part = 0; part < kCount; ++part) {
        Transpose16(pairs[part]);
        std::memcpy(out + (2 * part + half) * kTileElements, pairs[part], sizeof pairs[part]);
      }
    }
  }
}

// The number of parts of an element of W.
template <typename T>
constexpr int kPartsOf = std::is_same_v<T, float>     ? 3
                         : std::is_same_v<T, Float16> ? 2
                                                      : 1;

template <typename T>
void PackTilePanel(const void* w, DType, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  PackTilePanelOf<kPartsOf<T>>(static_cast<const T*>(w), stride, cols, depth, static_cast<uint16_t*>(packed));
}

// Packs columns of b in the layout of PackTilePanelOf.
template <int kCount, typename T>
void PackTileRightOf(const T* b, int64_t stride, int64_t cols, int64_t depth, uint16_t* out) {
  for (int64_t k = 0; k < depth; k += kStep, out += 2 * kTileElements * kCount) {
    for (int64_t pair = 0; pair < kTileSide; ++pair) {
      const int64_t even = k + 2 * pair, odd = even + 1;
      for (int half = 0; half < 2; ++half) {
        const int64_t count = cols - half * kTileSide;
        const T* from = b + half * kTileSide;
        SixteenFloats low{}, high{};
        if (even < depth) low = LoadColumns(from + even * stride, count);
        if (odd < depth) high = LoadColumns(from + odd * stride, count);
        Bits low_parts[kParts] = {(Bits)low}, high_parts[kParts] = {(Bits)high};
        if constexpr (!std::is_same_v<T, BFloat16>) {
          SplitInto<kCount>(low, low_parts);
          SplitInto<kCount>(high, high_parts);
        }
        for (int part = 0; part < kCount; ++part) {
          const Bits both = low_parts[part] >> 16 | (high_parts[part] & 0xffff0000u);
          std::memcpy(out + (2 * part + half) * kTileElements + pair * kStep, &both, sizeof both);
        }
      }
    }
  }
}

template <typename T>
void PackTileRight(const void* b, DType, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  PackTileRightOf<kPartsOf<T>>(static_cast<const T*>(b), stride, cols, depth, static_cast<uint16_t*>(packed));
}

// y (rows, cols) = (y if accumulate) + the sums of a tile, at most 16 x 16.
template <int kTile, typename Tiles>
inline void AddTile(const Tiles& tiles, int64_t rows, int64_t cols, bool accumulate, float* y, int64_t stride) {
  if (!accumulate && rows >= kTileSide && cols >= kTileSide) {
    tiles.template Store<kTile>(y, stride);
    return;
  }
  alignas(64) float sums[kTileSide * kTileSide];
  tiles.template Store<kTile>(sums, kTileSide);
  for (int64_t i = 0; i < std::min(rows, kTileSide); ++i) {
    float* out = y + i * stride;
    const float* sum = sums + i * kTileSide;
    if (cols >= kTileSide) {
      Lanes512::Store(out, accumulate ? Lanes512::Load(sum) + Lanes512::Load(out) : Lanes512::Load(sum));
      continue;
    }
    for (int64_t j = 0; j < cols; ++j) out[j] = (accumulate ? out[j] : 0.0f) + sum[j];
  }
}

// One or two tiles of rows times two tiles of columns: tiles 0 to 3 hold the sums, 4 and 5 parts of x, 6 and 7 of W.
template <typename Tiles, int kRowTiles, int kXParts, int kWParts>
inline void MultiplyTilePair(Tiles& tiles, const PackedBlock& block, int64_t first, bool accumulate, float* y,
                             int64_t stride) {
  const int64_t steps = (block.depth + kStep - 1) / kStep, tile_row = steps * kXParts * kTileElements;
  const auto* x = static_cast<const uint16_t*>(block.x) + first / kTileSide * tile_row;
  const auto* w = static_cast<const uint16_t*>(block.w);
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  float* out = y + first * stride;
  const int64_t rows = block.rows - first, more_cols = block.cols - kTileSide;
  // The rows of y are far apart. They are prefetched a few at a time, so that they arrive while the tiles are summed.
  const int64_t rows_per_step = kRowTiles * kTileSide / steps + 1, present = std::min(rows, kRowTiles * kTileSide);
  // The next panel of W arrives in the second-level cache while all rows of x are multiplied.
  const int64_t next_begin = first * block.next_rows / block.rows,
                next_end = std::min(first + kRowTiles * kTileSide, block.rows) * block.next_rows / block.rows;
  for (int64_t step = 0; step < steps; ++step, x += kXParts * kTileElements) {
    for (int64_t row = step * rows_per_step; row < std::min(present, (step + 1) * rows_per_step); ++row)
      for (int64_t at = 0; at < block.cols; at += kTileSide) __builtin_prefetch(out + row * stride + at, 1);
    for (int64_t row = next_begin; step * kCacheLine < block.next_bytes && row < next_end; ++row)
      __builtin_prefetch(block.next + row * block.next_stride + step * kCacheLine, 0, 2);
#pragma GCC unroll 3
    for (int w_part = 0; w_part < kWParts; ++w_part, w += 2 * kTileElements) {
      tiles.template Load<6>(w);
      tiles.template Load<7>(w + kTileElements);
#pragma GCC unroll 3
      for (int part = 0; part + w_part < kXParts; ++part) {
        tiles.template Load<4>(x + part * kTileElements);
        tiles.template MultiplyAdd<0, 4, 6>();
        tiles.template MultiplyAdd<1, 4, 7>();
        if constexpr (kRowTiles == 2) {
          tiles.template Load<5>(x + tile_row + part * kTileElements);
          tiles.template MultiplyAdd<2, 5, 6>();
          tiles.template MultiplyAdd<3, 5, 7>();
        }
      }
    }
  }
  AddTile<0>(tiles, rows, block.cols, accumulate, out, stride);
  if (more_cols > 0) AddTile<1>(tiles, rows, more_cols, accumulate, out + kTileSide, stride);
  if constexpr (kRowTiles == 2) {
    out += kTileSide * stride;
    AddTile<2>(tiles, rows - kTileSide, block.cols, accumulate, out, stride);
    if (more_cols > 0) AddTile<3>(tiles, rows - kTileSide, more_cols, accumulate, out + kTileSide, stride);
  }
}

template <typename Tiles, int kXParts, int kWParts>
void MultiplyTiles(const PackedBlock& block, bool accumulate, float* y, int64_t stride) {
  Tiles tiles;
  for (int64_t i = 0; i < block.rows; i += 2 * kTileSide) {
    if (block.rows - i > kTileSide) {
      MultiplyTilePair<Tiles, 2, kXParts, kWParts>(tiles, block, i, accumulate, y, stride);
    } else {
      MultiplyTilePair<Tiles, 1, kXParts, kWParts>(tiles, block, i, accumulate, y, stride);
    }
  }
}

// The product for a right operand of type T.
template <typename Tiles, typename T>
constexpr BlockProduct MakeTileProduct() {
  static_assert(2 * kTileSide * kPanelDepth * sizeof(BFloat16) <= kMostPanelBytes);
  return {.tile_rows = kTileSide,
          .tile_cols = 2 * kTileSide,
          .max_rows = kPackedRows * kPartsOf<T>,
          .max_depth = kPanelDepth / kPartsOf<T>,
          .step = kStep,
          .x_bytes = kParts * sizeof(BFloat16),
          .pack_rows = &PackTileRows<kParts>,
          .pack_columns = &PackTileColumns<kParts>,
          .pack_panel = &PackTilePanel<T>,
          .pack_right = &PackTileRight<T>,
          .multiply = &MultiplyTiles<Tiles, kParts, kPartsOf<T>>};
}

// Packs the one part of each element for a rounded product.
inline void PackRoundedPanel(const void* w, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  auto* const out = static_cast<uint16_t*>(packed);
  WithElements(w, dtype, [&](const auto* rows) { PackTilePanelOf<1>(rows, stride, cols, depth, out); });
}

inline void PackRoundedRight(const void* b, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed) {
  auto* const out = static_cast<uint16_t*>(packed);
  WithElements(b, dtype, [&](const auto* rows) { PackTileRightOf<1>(rows, stride, cols, depth, out); });
}

// The rounded product, for a right operand of any type.
template <typename Tiles>
constexpr BlockProduct MakeRoundedTileProduct() {
  return {.tile_rows = kTileSide,
          .tile_cols = 2 * kTileSide,
          .max_rows = kPackedRows * kParts,  // of one part each
          .max_depth = kPanelDepth,
          .step = kStep,
          .x_bytes = sizeof(BFloat16),
          .pack_rows = &PackTileRows<1>,
          .pack_columns = &PackTileColumns<1>,
          .pack_panel = &PackRoundedPanel,
          .pack_right = &PackRoundedRight,
          .multiply = &MultiplyTiles<Tiles, 1, 1>};
}

}  // namespace
}  // namespace shiftrt
