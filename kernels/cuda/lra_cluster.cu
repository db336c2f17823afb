// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/lra_cluster.h"
#include "kernels/cuda/warp.cuh"
#include "runtime/cuda/switches.h"

namespace shiftrt::gpu {

namespace {

// One cluster, each block of which has a slice of the stream. A block copies its part of both factors and of the bias
// to shared memory while the launch that computes the stream still runs. Then it multiplies its slice by its columns of
// P', stores the shares of h P to all blocks, waits for those of all others, and adds (h P) Q to its slice. The next
// launch starts after the wait, so that it does not take bandwidth from the launch that computes the stream.
struct ClusterLraKernel {
  static constexpr bool kHopper = true, kWaits = true, kAllowsNext = true;
  static constexpr int kClusterBlocks = 16;
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  static constexpr int kColumnLanes = 8;  // lanes per column of the stream, for the product with Q
  static_assert(kClusterBlocks <= kWarpSize);
  struct Args {
    LowRankLra lra;
    float* h;
  };

  static constexpr int SliceOf(int64_t hidden) { return 8 * Blocks(hidden, 8 * kClusterBlocks); }
  static constexpr int64_t SharedFor(int64_t hidden, int64_t rank) {
    const int64_t slice = SliceOf(hidden);
    return static_cast<int64_t>(sizeof(float)) * (2 * slice * rank + 2 * slice + kClusterBlocks * rank + rank) +
           SharedBytes<Mbarrier>(1);
  }

  static SHIFTRT_DEVICE float Dot4(Shared<float> a, Shared<float> b) {
    float left[4], right[4];
    LoadShared4(a, left);
    LoadShared4(b, right);
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2] + left[3] * right[3];
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int hidden = static_cast<int>(args.lra.hidden), rank = static_cast<int>(args.lra.rank);
    const int slice = SliceOf(hidden), first = BlockOfCluster() * slice, left = hidden - first;
    const int count = left < 0 ? 0 : left < slice ? left : slice;
    SharedArena arena;
    const Shared<float> p = arena.Take<float>(slice * rank), q = arena.Take<float>(slice * rank),
                        h = arena.Take<float>(slice), bias = arena.Take<float>(slice),
                        shares = arena.Take<float>(kClusterBlocks * rank), inner = arena.Take<float>(rank);
    const Shared<Mbarrier> all_shares = arena.Take<Mbarrier>(1);
    if (Thread() == 0) {
      InitMbarrier(all_shares, 1);
      FenceMbarriers();
      ArriveExpecting(all_shares, kClusterBlocks * rank * static_cast<int>(sizeof(float)));
    }
    // Loops are unrolled no further than rank 64 at a hidden size of 4096 takes them. More would take registers, with
    // which a block no longer fits besides two of the launch before.
#pragma unroll 4
    for (int i = Thread(); i < rank * (count / 4); i += kThreads) {
      const int row = i / (count / 4), col = 4 * (i % (count / 4));
      CopyAsync16(p + row * slice + col, args.lra.p + static_cast<int64_t>(row) * hidden + first + col, true);
    }
#pragma unroll 4
    for (int i = 4 * Thread(); i < count * rank; i += 4 * kThreads)
      CopyAsync16(q + i, args.lra.q + static_cast<int64_t>(first) * rank + i, true);
    for (int i = 4 * Thread(); i < count; i += 4 * kThreads) CopyAsync16(bias + i, args.lra.bias + first + i, true);
    CopyAsyncCommit();
    SyncCluster();  // all blocks have started, and shares can be stored there
    WaitForEarlier();
    AllowNext();
#pragma unroll 1
    for (int c = Thread(); c < count; c += kThreads) h[c] = args.h[first + c];
    CopyAsyncWait<0>();
    SyncThreads();
    for (int r = Warp(); r < rank; r += kWarps) {
      float share = 0;
#pragma unroll 2
      for (int c = 4 * Lane(); c < count; c += 4 * kWarpSize) share += Dot4(p + r * slice + c, h + c);
      share = WarpSum(share);
      if (Lane() < kClusterBlocks) StoreToBlock(shares + BlockOfCluster() * rank + r, Lane(), share, all_shares);
    }
    WaitForCluster(all_shares, 0);
#pragma unroll 1
    for (int r = Thread(); r < rank; r += kThreads) {
      float sum = 0;
      for (int block = 0; block < kClusterBlocks; ++block) sum += shares[block * rank + r];
      inner[r] = sum;
    }
    SyncThreads();
    constexpr int kColumns = kWarpSize / kColumnLanes;
    for (int begin = kColumns * Warp(); begin < count; begin += kColumns * kWarps) {
      const int c = begin + Lane() / kColumnLanes;
      float dot = 0;
      if (c < count)
#pragma unroll 2
        for (int r = 4 * (Lane() % kColumnLanes); r < rank; r += 4 * kColumnLanes)
          dot += Dot4(q + c * rank + r, inner + r);
      dot = WarpSum<kColumnLanes>(dot);
      if (Lane() % kColumnLanes == 0 && c < count) args.h[first + c] = h[c] + (dot + bias[c]);
    }
  }
};

}  // namespace

bool LraTakesCluster(Stream stream, const LowRankLra& lra) {
  return lra.rank <= kMaxFusedRank && ClusterLraKernel::SharedFor(lra.hidden, lra.rank) <= kHopperSharedBytes &&
         SwitchedOn("SHIFTRT_CUDA_CLUSTERS", true) && RunsHopperKernels(stream.device) &&
         ClusterFits<ClusterLraKernel>(stream);
}

void ApplyLowRankLraInCluster(Stream stream, const LowRankLra& lra, float* h) {
  Launch<ClusterLraKernel>(stream,
                           {.x = ClusterLraKernel::kClusterBlocks,
                            .shared_bytes = static_cast<int>(ClusterLraKernel::SharedFor(lra.hidden, lra.rank))},
                           {lra, h});
}

}  // namespace shiftrt::gpu
