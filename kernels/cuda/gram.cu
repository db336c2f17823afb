#include "kernels/cuda/gram.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kTile = 64;      // rows and columns of the sums a block owns
constexpr int kTokens = 32;    // rows of H in shared memory at a time
constexpr int kPadding = 8;    // a fragment's four rows then lie in different banks
constexpr int kWarpTile = 32;  // a warp owns a quarter of the block's tile
constexpr int kFragments = 4;  // of 8, either way

// sums += Haug' Haug, or Haug' D; a block a tile.
template <bool kGram>
struct RidgeSumsKernel {
  static constexpr int kThreads = 128, kStride = kTile + kPadding;
  struct Args {
    const float *h, *delta;
    double* sums;
    int tokens, d;
  };
  static constexpr int kShared = 2 * SharedBytes<float>(kTokens * kStride);

  // tile[t][c] = column first + c of token + t: of [x | 1] if `ones`, else of x; zeros outside.
  static SHIFTRT_DEVICE void Fetch(const float* x, bool ones, const Args& args, int token, int first,
                                   Shared<float> tile) {
    for (int i = Thread(); i < kTokens * kTile; i += kThreads) {
      const int t = token + i / kTile, c = first + i % kTile;
      float value = 0;
      if (t < args.tokens && c < args.d) value = x[static_cast<int64_t>(t) * args.d + c];
      if (t < args.tokens && c == args.d && ones) value = 1;
      tile[i / kTile * kStride + i % kTile] = value;
    }
  }

  static SHIFTRT_DEVICE void Multiply(Shared<float> left, Shared<float> right,
                                      double (&sums)[kFragments][kFragments][2]) {
    const int row0 = Warp() / 2 * kWarpTile + Lane() / 4, col0 = Warp() % 2 * kWarpTile + Lane() / 4;
    for (int k = 0; k < kTokens; k += 4) {
      const int at = (k + Lane() % 4) * kStride;
      double a[kFragments], b[kFragments];
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        a[i] = static_cast<double>(left[at + row0 + 8 * i]);
        b[i] = static_cast<double>(right[at + col0 + 8 * i]);
      }
#pragma unroll
      for (int i = 0; i < kFragments; ++i)
#pragma unroll
        for (int j = 0; j < kFragments; ++j) MultiplyAccumulateDouble(sums[i][j], a[i], b[j]);
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int first_row = Block().y * kTile, first_col = Block().x * kTile;
    if (kGram && first_col < first_row) return;  // wholly below the diagonal
    SharedArena arena;
    const Shared<float> left = arena.Take<float>(kTokens * kStride), right = arena.Take<float>(kTokens * kStride);
    double sums[kFragments][kFragments][2] = {};
    for (int token = 0; token < args.tokens; token += kTokens) {
      Fetch(args.h, true, args, token, first_row, left);
      Fetch(kGram ? args.h : args.delta, kGram, args, token, first_col, right);
      SyncThreads();
      Multiply(left, right, sums);
      SyncThreads();
    }
    const int cols = kGram ? args.d + 1 : args.d;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        for (int r = 0; r < 2; ++r) {
          const int row = first_row + Warp() / 2 * kWarpTile + 8 * i + Lane() / 4;
          const int col = first_col + Warp() % 2 * kWarpTile + 8 * j + 2 * (Lane() % 4) + r;
          if (row > args.d || col >= cols || (kGram && col < row)) continue;
          args.sums[static_cast<int64_t>(row) * cols + col] += sums[i][j][r];
        }
      }
    }
  }
};

// A block a row.
struct RowSquaresKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    const float* x;
    double* squares;
    int d;
  };
  static constexpr int kShared = SharedBytes<double>(kWarps);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<double> scratch = arena.Take<double>(kWarps);
    double sum = 0;
    for (int i = 8 * Thread(); i < args.d; i += 8 * kThreads) {
      float x[8];
      Load8(args.x + static_cast<int64_t>(Block().x) * args.d + i, x);
      for (int j = 0; j < 8; ++j) sum += static_cast<double>(x[j]) * static_cast<double>(x[j]);
    }
    sum = BlockSum<kThreads>(sum, scratch);
    if (Thread() == 0) args.squares[Block().x] = sum;
  }
};

}  // namespace

void AddToRidgeSums(Stream stream, const float* h, const float* delta, int64_t tokens, int64_t d,
                    const RidgeSums& sums) {
  Require(d % 8 == 0, "Gram update", "a hidden size that is a multiple of 8", d);
  if (tokens == 0) return;
  const int rows = static_cast<int>(tokens), cols = static_cast<int>(d), tiles = Blocks(d + 1, kTile);
  using Gram = RidgeSumsKernel<true>;
  using Cross = RidgeSumsKernel<false>;
  Launch<Gram>(stream, {.x = tiles, .y = tiles, .shared_bytes = Gram::kShared}, {h, nullptr, sums.gram, rows, cols});
  Launch<Cross>(stream, {.x = Blocks(d, kTile), .y = tiles, .shared_bytes = Cross::kShared},
                {h, delta, sums.cross, rows, cols});
}

void RowSquares(Stream stream, const float* x, int64_t tokens, int64_t d, double* squares) {
  Require(d % 8 == 0, "row squares", "a row length that is a multiple of 8", d);
  if (tokens == 0) return;
  Launch<RowSquaresKernel>(stream, {.x = static_cast<int>(tokens), .shared_bytes = RowSquaresKernel::kShared},
                           {x, squares, static_cast<int>(d)});
}

}  // namespace shiftrt::gpu
