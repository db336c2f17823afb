// SPDX-License-Identifier: Apache-2.0
// The gate and up projections of an MLP for many tokens, with the activation in the same kernel: the product is not
// written and read again. For compute capability 9.0 (tiles.h). The other form is Products::MatMul() and then
// GateRows().
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/activation.h"

namespace shiftrt::gpu {

// out = activation(x Wg' + bg) * (x Wu' + bu). x, weights and out have the same type, bfloat16 or float16. Sums are
// float32, in the order of the hidden columns, and stay float32 until `out` is rounded; the other form rounds the
// product first, so its bits differ.
//
// Cost: 4 tokens intermediate hidden FLOP. It writes `out` once. A tile of 128 x 128 of the output copies 128 rows of
// x, of Wg and of Wu; the tiles that are computed at the same time share them in L2.
struct GatedProduct {
  ConstDeviceArray x;                                // (tokens, hidden)
  ConstDeviceArray gate_up;                          // (2 intermediate, hidden): Wg, then Wu
  const float* bias = nullptr;                       // (2 intermediate): bg, then bu; or null
  int64_t tokens = 0, hidden = 0, intermediate = 0;  // hidden: a multiple of 64; intermediate: a multiple of 8
  DeviceArray out;                                   // (tokens, intermediate), not x
  int multiprocessors = 1;                           // those of the device; there are at most as many blocks
};
// With kSilu or kGeluTanh. Throws Error for what TakesGatedProduct() denies.
void MultiplyGated(Stream stream, Activation activation, const GatedProduct& call);

// True if the device has the kernel for matrices of this type and these sizes: RunsWarpgroupProducts(), unless the
// environment variable SHIFTRT_CUDA_GATED_PRODUCT is 0.
bool TakesGatedProduct(int device, DType dtype, int64_t hidden, int64_t intermediate);
// True if a decoder should use it on devices that have it. It is off by default, because no measurement on a device has
// shown that it is faster: the environment variable SHIFTRT_CUDA_GATED_PRODUCT must be set, and not to 0.
bool WantsGatedProduct();

// Tiles of the output, 128 x 128 each, in the order in which blocks take them. A group of 16 tiles of tokens meets one
// tile of columns after the other. With r tiles of tokens and c of columns computed at the same time, r + 2 c different
// tiles are copied for a step; of 132 at the same time, these are the fewest if r is 16.
inline constexpr int kGatedTile = 128, kGatedTokenTiles = 16;
struct GatedTile {
  int tokens = 0, columns = 0;  // the first of each
};
constexpr GatedTile GatedTileAt(int tile, int token_tiles, int column_tiles) {
  const int group = tile / (kGatedTokenTiles * column_tiles), first = group * kGatedTokenTiles;
  const int left = token_tiles - first, rows = left < kGatedTokenTiles ? left : kGatedTokenTiles;
  const int place = tile - first * column_tiles;
  return {(first + place % rows) * kGatedTile, place / rows * kGatedTile};
}

}  // namespace shiftrt::gpu
