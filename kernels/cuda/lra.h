// SPDX-License-Identifier: Apache-2.0
// Low-rank linear residual adapter on one token, in one launch (kernels/lra.h; paper eq. low_rank_adapter).
// Cost: reads 2 d r + d floats once. The time is that of the launch and of one barrier over the grid.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// The transposed factors, so that both have the layout of weight matrices. `rank` is a multiple of 8, padded with
// zeros.
struct LowRankLra {
  const float* p = nullptr;     // (rank, hidden): P'
  const float* q = nullptr;     // (hidden, rank): Q'
  const float* bias = nullptr;  // (hidden)
  int64_t hidden = 0, rank = 0;
};

// The highest rank for which Q' fits into shared memory.
inline constexpr int64_t kMaxFusedRank = 256;
// Whether one launch suffices. Its blocks wait for each other, so all must be resident, and only one block per
// multiprocessor is certain to fit. Otherwise use two matrix-vector products.
bool LowRankLraFits(const LowRankLra& lra, int multiprocessors);
// The number of floats of scratch that one launch needs.
int64_t LowRankLraScratch(const LowRankLra& lra);
// h (hidden) += (h P) Q + bias. hidden: a multiple of 8; rank: a multiple of 8, at most kMaxFusedRank.
void ApplyLowRankLra(Stream stream, const LowRankLra& lra, float* scratch, float* h);

}  // namespace shiftrt::gpu
