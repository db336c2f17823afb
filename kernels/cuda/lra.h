// SPDX-License-Identifier: Apache-2.0
// Low-rank linear residual adapter on one token, in one launch (paper eq. low_rank_adapter).
// Cost: reads 2 d r + 2 d floats once. The time is that of the launch and of one barrier, over the grid or, on compute
// capability 9.0, over a cluster of 16 blocks. The cluster reads the factors while the launch in front still runs.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// The transposed factors, so that both have the layout of weight matrices. `rank` is a multiple of 8, padded with
// zeros. No launch that may still be running may write them.
struct LowRankLra {
  const float* p = nullptr;     // (rank, hidden): P'
  const float* q = nullptr;     // (hidden, rank): Q'
  const float* bias = nullptr;  // (hidden)
  int64_t hidden = 0, rank = 0;
};

// The highest rank for which Q' fits into shared memory.
inline constexpr int64_t kMaxFusedRank = 256;
// The two kernels: one waits for its whole grid, the other for its cluster. kFastest: kCluster where LraTakesCluster().
enum class LraKernel { kFastest, kGrid, kCluster };
// True if a grid can compute it. Its blocks wait for each other, so all must be resident, and only one block per
// multiprocessor is certain to fit.
bool LraTakesGrid(const LowRankLra& lra, int multiprocessors);
// True if a cluster can compute it: on compute capability 9.0, unless the environment variable SHIFTRT_CUDA_CLUSTERS is
// 0, if its 16 blocks fit on the device and a sixteenth of both factors fits into shared memory, as with hidden 4096
// and rank 96.
bool LraTakesCluster(Stream stream, const LowRankLra& lra);
// The number of floats of scratch that kGrid needs.
int64_t LowRankLraScratch(const LowRankLra& lra);
// h (hidden) += (h P) Q + bias. hidden: a multiple of 8; rank: a multiple of 8, at most kMaxFusedRank. Where neither
// kernel can, use two matrix-vector products. The two kernels add in different orders, so last bits differ.
void ApplyLowRankLra(Stream stream, const LowRankLra& lra, float* scratch, float* h,
                     LraKernel kernel = LraKernel::kFastest);

}  // namespace shiftrt::gpu
