// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lra_cluster.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kSlice = 64;  // columns of the stream per block

// Each block multiplies its slice of the stream by its columns of P'. Once the shares of h P of all blocks are in
// `scratch`, it adds (h P) Q and the bias to the same slice. Its rows of Q', its part of the bias and its slice of the
// stream are copied to shared memory while the grid waits.
struct LowRankLraKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  static constexpr int kLanes = kSlice / 8;  // lanes per row of P', with eight columns per lane
  static constexpr int kRows = 2;            // rows of P' that a lane loads at a time
  static constexpr int kMostGroups = 8;      // groups of threads that divide the sum over the blocks
  struct Args {
    LowRankLra lra;
    float* scratch;  // (blocks, rank)
    float* h;
  };

  static constexpr int SharedFor(int rank) {
    return SharedBytes<float>(kSlice * rank) + 2 * SharedBytes<float>(kSlice) + SharedBytes<float>(rank) +
           SharedBytes<float>(kThreads);
  }

  // Computes this block's share of h P.
  static SHIFTRT_DEVICE void MultiplySlice(const Args& args, int first, int count, int rank) {
    const int col = 8 * (Lane() % kLanes), row_step = kThreads / kLanes;
    for (int begin = Warp() * (kWarpSize / kLanes); begin < rank; begin += kRows * row_step) {
      Raw8<float> raw[kRows];
      const int row = begin + Lane() / kLanes;
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        if (row + i * row_step < rank && col < count)
          raw[i] = LoadOnce8(args.lra.p + (row + i * row_step) * args.lra.hidden + first + col);
      SyncWarp();  // keeps the loads above together, so that all are issued before the first use
      float h[8] = {};
      if (col < count) Load8(args.h + first + col, h);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float p[8], share = 0;
        Widen8(raw[i], p);
        for (int j = 0; j < 8; ++j) share += h[j] * p[j];
        share = WarpSum<kLanes>(share);
        if (Lane() % kLanes == 0 && row + i * row_step < rank)
          args.scratch[Block().x * rank + row + i * row_step] = share;
      }
    }
  }

  // inner = the sum of the shares of all blocks.
  static SHIFTRT_DEVICE void AddShares(const Args& args, int rank, Shared<float> partial, Shared<float> inner) {
    const int room = kThreads / rank, groups = room < kMostGroups ? room : kMostGroups;
    const int group = Thread() / rank, r = Thread() % rank;
    if (group < groups) {
      float sum = 0;
#pragma unroll 16
      for (int b = group; b < GridBlocks().x; b += groups) sum += args.scratch[b * rank + r];
      partial[Thread()] = sum;
    }
    SyncThreads();
    if (group == 0) {
      float sum = 0;
      for (int g = 0; g < groups; ++g) sum += partial[g * rank + r];
      inner[r] = sum;
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int hidden = static_cast<int>(args.lra.hidden), rank = static_cast<int>(args.lra.rank);
    const int first = Block().x * kSlice, count = hidden - first < kSlice ? hidden - first : kSlice;
    SharedArena arena;
    const Shared<float> q = arena.Take<float>(kSlice * rank), bias = arena.Take<float>(kSlice),
                        h = arena.Take<float>(kSlice), inner = arena.Take<float>(rank),
                        partial = arena.Take<float>(kThreads);
    for (int i = 4 * Thread(); i < count * rank; i += 4 * kThreads)
      CopyAsync16(q + i, args.lra.q + static_cast<int64_t>(first) * rank + i, true);
    for (int i = 4 * Thread(); i < count; i += 4 * kThreads) {
      CopyAsync16(bias + i, args.lra.bias + first + i, true);
      CopyAsync16(h + i, args.h + first + i, true);
    }
    CopyAsyncCommit();
    MultiplySlice(args, first, count, rank);
    SyncGrid();
    AddShares(args, rank, partial, inner);
    CopyAsyncWait<0>();
    SyncThreads();
    for (int c = Warp(); c < count; c += kWarps) {
      float dot = 0;
      for (int r = Lane(); r < rank; r += kWarpSize) dot += inner[r] * q[c * rank + r];
      dot = WarpSum(dot);
      if (Lane() == 0) args.h[first + c] = h[c] + (dot + bias[c]);
    }
  }
};
static_assert(LowRankLraKernel::SharedFor(kMaxFusedRank) <= kMaxSharedBytes);

}  // namespace

bool LraTakesGrid(const LowRankLra& lra, int multiprocessors) {
  return lra.rank <= kMaxFusedRank && Blocks(lra.hidden, kSlice) <= multiprocessors;
}

int64_t LowRankLraScratch(const LowRankLra& lra) { return Blocks(lra.hidden, kSlice) * lra.rank; }

void ApplyLowRankLra(Stream stream, const LowRankLra& lra, float* scratch, float* h, LraKernel kernel) {
  Require(lra.hidden % 8 == 0, "low-rank adapter", "a hidden size that is a multiple of 8", lra.hidden);
  Require(lra.rank % 8 == 0 && lra.rank > 0 && lra.rank <= kMaxFusedRank, "low-rank adapter",
          "a rank that is a multiple of 8, at most 256", lra.rank);
  if (kernel != LraKernel::kGrid) {
    const bool takes = LraTakesCluster(stream, lra);
    Require(takes || kernel == LraKernel::kFastest, "low-rank adapter in a cluster",
            "compute capability 9.0 without SHIFTRT_CUDA_CLUSTERS=0, and a smaller rank", lra.rank);
    if (takes) return ApplyLowRankLraInCluster(stream, lra, h);
  }
  Launch<LowRankLraKernel>(stream,
                           {.x = Blocks(lra.hidden, kSlice),
                            .shared_bytes = LowRankLraKernel::SharedFor(static_cast<int>(lra.rank)),
                            .cooperative = true},
                           {lra, scratch, h});
}

}  // namespace shiftrt::gpu
