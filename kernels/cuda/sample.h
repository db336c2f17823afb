// The choice of a token from one row of logits, on the device (engine/sampling.h): what comes over is one id.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// In device memory, because a launch that is replayed reads another one every time.
struct SampleRequest {
  double temperature = 0;  // <= 0: greedy
  double top_p = 1;
  double uniform = 0;  // the draw, from [0, 1)
  int64_t top_k = 0;   // 0: all
};

inline constexpr int64_t kMaxSampledVocab = int64_t{1} << 20;

// token[0] = the choice among `logits` (vocab), or -1 if one is NaN. vocab <= kMaxSampledVocab.
//
// Sums of probabilities are exact: a token weighs a whole number of units of 2^-43 of the likeliest one's probability,
// so that no order of adding matters. engine/sampling.h adds the same weights in float64. The two choices differ only
// where the draw, or top_p, falls within vocab * 2^-43 of the likeliest token's probability of a border between two
// tokens. Blocks that wait for each other share out the row, and read it once when greedy; else six times, and twice
// more each for top-k and top-p.
void SampleToken(Stream stream, const float* logits, int64_t vocab, const SampleRequest* request, int multiprocessors,
                 uint64_t* scratch, int32_t* token);
// Elements of scratch one launch needs.
int64_t SampleScratch(int64_t vocab, int multiprocessors);
// How many blocks share out a row: no more than are sure to be resident together.
int SampleBlocks(int64_t vocab, int multiprocessors);

}  // namespace shiftrt::gpu
