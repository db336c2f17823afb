// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gram.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kTile = 64;      // rows and columns of the sums per block
constexpr int kTokens = 32;    // rows of H in shared memory at a time
constexpr int kPadding = 8;    // puts the four rows of a fragment into different banks
constexpr int kWarpTile = 32;  // each warp computes a quarter of the block's tile
constexpr int kFragments = 4;  // per warp tile in each direction, of 8 rows or columns

// sums += Haug' W Haug, or Haug' W D. There is one block per tile.
template <bool kGram>
struct RidgeSumsKernel {
  static constexpr int kThreads = 128, kStride = kTile + kPadding;
  struct Args {
    const float *h, *delta;
    const double* weights;
    double* sums;
    int tokens, n, d;  // n: columns of h, d: of delta
  };
  static constexpr int kRows = kTokens * kStride;
  static constexpr int kShared = 2 * SharedBytes<float>(2 * kRows) + SharedBytes<double>(2 * kTokens);

  // A matrix (tokens, width), or [x | 1] if `ones`.
  struct Rows {
    const float* x;
    int width;
    bool ones;
  };

  // tile[t][c] = column first + c of row token + t. Elements outside are zero.
  static SHIFTRT_DEVICE void Fetch(const Rows& rows, const Args& args, int token, int first, Shared<float> tile) {
    constexpr int kPieces = kTile / 4;
    for (int i = Thread(); i < kTokens * kPieces; i += kThreads) {
      const int t = token + i / kPieces, c = first + 4 * (i % kPieces);
      const Shared<float> to = tile + (i / kPieces * kStride + 4 * (i % kPieces));
      if (rows.ones && c == rows.width) {
        StoreShared4(to, t < args.tokens ? 1.0f : 0.0f, 0, 0, 0);
      } else {
        CopyAsync16(to, rows.x + static_cast<int64_t>(t) * rows.width + c, t < args.tokens && c < rows.width);
      }
    }
  }

  static SHIFTRT_DEVICE void FetchWeights(const Args& args, int token, Shared<double> weights) {
    const int t = token + Thread();
    if (Thread() < kTokens) weights[Thread()] = args.weights != nullptr && t < args.tokens ? args.weights[t] : 1.0;
  }

  static SHIFTRT_DEVICE void Multiply(Shared<float> left, Shared<float> right, Shared<double> weights,
                                      double (&sums)[kFragments][kFragments][2]) {
    const int row0 = Warp() / 2 * kWarpTile + Lane() / 4, col0 = Warp() % 2 * kWarpTile + Lane() / 4;
    for (int k = 0; k < kTokens; k += 4) {
      const int at = (k + Lane() % 4) * kStride;
      const double weight = weights[k + Lane() % 4];
      double a[kFragments], b[kFragments];
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        a[i] = weight * static_cast<double>(left[at + row0 + 8 * i]);
        b[i] = static_cast<double>(right[at + col0 + 8 * i]);
      }
#pragma unroll
      for (int i = 0; i < kFragments; i += 2)
#pragma unroll
        for (int j = 0; j < kFragments; ++j) MultiplyAccumulateDouble(sums[i][j], sums[i + 1][j], a[i], a[i + 1], b[j]);
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int first_row = Block().y * kTile, first_col = Block().x * kTile;
    if (kGram && first_col < first_row) return;  // the tile is below the diagonal
    SharedArena arena;
    const Shared<float> left = arena.Take<float>(2 * kRows), right = arena.Take<float>(2 * kRows);  // two stages
    const Shared<double> weights = arena.Take<double>(2 * kTokens);
    const Rows inputs = {args.h, args.n, true};
    const auto fetch = [&](int token) {
      const int stage = token / kTokens % 2;
      if (token < args.tokens) {
        Fetch(inputs, args, token, first_row, left + stage * kRows);
        Fetch(kGram ? inputs : Rows{args.delta, args.d, false}, args, token, first_col, right + stage * kRows);
        FetchWeights(args, token, weights + stage * kTokens);
      }
      CopyAsyncCommit();
    };
    double sums[kFragments][kFragments][2] = {};
    fetch(0);
    for (int token = 0; token < args.tokens; token += kTokens) {
      const int stage = token / kTokens % 2;
      fetch(token + kTokens);
      CopyAsyncWait<1>();
      SyncThreads();
      Multiply(left + stage * kRows, right + stage * kRows, weights + stage * kTokens, sums);
      SyncThreads();
    }
    const int cols = kGram ? args.n + 1 : args.d;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        for (int r = 0; r < 2; ++r) {
          const int row = first_row + Warp() / 2 * kWarpTile + 8 * i + Lane() / 4;
          const int col = first_col + Warp() % 2 * kWarpTile + 8 * j + 2 * (Lane() % 4) + r;
          if (row > args.n || col >= cols || (kGram && col < row)) continue;
          args.sums[static_cast<int64_t>(row) * cols + col] += sums[i][j][r];
        }
      }
    }
  }
};

// There is one block per row.
struct RowProductsKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    const float *a, *b;
    RowProducts* products;
    int n;
  };
  static constexpr int kShared = 3 * SharedBytes<double>(kWarps);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<double> dots = arena.Take<double>(kWarps), squares_a = arena.Take<double>(kWarps),
                         squares_b = arena.Take<double>(kWarps);
    const int64_t row = static_cast<int64_t>(Block().x) * args.n;
    double dot = 0, aa = 0, bb = 0;
    for (int i = 8 * Thread(); i < args.n; i += 8 * kThreads) {
      float a[8], b[8];
      Load8(args.a + row + i, a);
      Load8(args.b + row + i, b);
      for (int j = 0; j < 8; ++j) {
        const double x = static_cast<double>(a[j]), y = static_cast<double>(b[j]);
        dot += x * y;
        aa += x * x;
        bb += y * y;
      }
    }
    dot = BlockSum<kThreads>(dot, dots);
    aa = BlockSum<kThreads>(aa, squares_a);
    bb = BlockSum<kThreads>(bb, squares_b);
    if (Thread() == 0) args.products[Block().x] = {dot, aa, bb};
  }
};

}  // namespace

void AddToRidgeSums(Stream stream, const RidgeRows& rows, const RidgeArrays& sums) {
  for (const int64_t width : {rows.n, rows.d})
    Require(width % 8 == 0, "Gram update", "a row length that is a multiple of 8", width);
  if (rows.tokens == 0) return;
  const int tokens = static_cast<int>(rows.tokens), n = static_cast<int>(rows.n), d = static_cast<int>(rows.d);
  const int tiles = Blocks(n + 1, kTile);
  using Gram = RidgeSumsKernel<true>;
  using Cross = RidgeSumsKernel<false>;
  Launch<Gram>(stream, {.x = tiles, .y = tiles, .shared_bytes = Gram::kShared},
               {rows.h, nullptr, rows.weights, sums.gram, tokens, n, d});
  Launch<Cross>(stream, {.x = Blocks(d, kTile), .y = tiles, .shared_bytes = Cross::kShared},
                {rows.h, rows.delta, rows.weights, sums.cross, tokens, n, d});
}

void ComputeRowProducts(Stream stream, const float* a, const float* b, int64_t tokens, int64_t n,
                        RowProducts* products) {
  Require(n % 8 == 0, "row products", "a row length that is a multiple of 8", n);
  if (tokens == 0) return;
  Launch<RowProductsKernel>(stream, {.x = static_cast<int>(tokens), .shared_bytes = RowProductsKernel::kShared},
                            {a, b, products, static_cast<int>(n)});
}

}  // namespace shiftrt::gpu
