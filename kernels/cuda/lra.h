// Low-rank linear residual adapter on one token, in one launch (kernels/lra.h; paper eq. low_rank_adapter).
// Cost: reads 2 d r + d floats once; what it takes is the launch and one barrier over the grid.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// The transposed factors, so that both are weight matrices like any other; `rank` is a multiple of 8, padded by zeros.
struct LowRankLra {
  const float* p = nullptr;     // (rank, hidden): P'
  const float* q = nullptr;     // (hidden, rank): Q'
  const float* bias = nullptr;  // (hidden)
  int64_t hidden = 0, rank = 0;
};

// The highest rank for which Q' goes through shared memory.
inline constexpr int64_t kMaxFusedRank = 256;
// Whether one launch does it: its blocks wait for each other, so all must be resident, and a multiprocessor is sure to
// hold one. Else use two matrix-vector products.
bool LowRankLraFits(const LowRankLra& lra, int multiprocessors);
// Floats of scratch one launch needs.
int64_t LowRankLraScratch(const LowRankLra& lra);
// h (hidden) += (h P) Q + bias. hidden: a multiple of 8; rank: a multiple of 8, at most kMaxFusedRank.
void ApplyLowRankLra(Stream stream, const LowRankLra& lra, float* scratch, float* h);

}  // namespace shiftrt::gpu
