// SPDX-License-Identifier: Apache-2.0
// The choice of a token from one row of logits, on the device (engine/sampling.h). Only its id is copied to the host.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// It is in device memory, because a replayed launch reads a new request every time.
struct SampleRequest {
  double temperature = 0;  // <= 0: greedy
  double top_p = 1;
  double uniform = 0;  // the random number, from [0, 1)
  int64_t top_k = 0;   // 0: all
};

inline constexpr int64_t kMaxSampledVocab = int64_t{1} << 20;

// token[0] = the choice among `logits` (vocab), or -1 if one is NaN. vocab <= kMaxSampledVocab.
//
// Sums of probabilities are exact: the weight of a token is an integer, in units of 2^-43 of the probability of the
// likeliest token, so the order of additions does not matter. engine/sampling.h adds the same weights in float64. The
// two choices differ only if `uniform` or top_p falls within vocab * 2^-43 of that probability of the border between
// two tokens. The row is divided between blocks that wait for each other. It is read once for greedy sampling,
// otherwise six times, and twice more for each of top-k and top-p.
void SampleToken(Stream stream, const float* logits, int64_t vocab, const SampleRequest* request, int multiprocessors,
                 uint64_t* scratch, int32_t* token);
// The number of elements of scratch that one launch needs.
int64_t SampleScratch(int64_t vocab, int multiprocessors);
// The number of blocks for a row: at most as many as are certain to be resident together.
int SampleBlocks(int64_t vocab, int multiprocessors);

// Writes on the device the data that the launches of one token read: numbers = {token, rotation, row of the cache,
// first row, keys seen} for the chosen token (0 in place of a -1, which is no token) at `position` of a cache, and
// *request = asked. The launch has the numbers as its arguments, so that the host uploads nothing.
inline constexpr int64_t kStepNumbers = 5;
struct ChosenStep {
  const int32_t* chosen = nullptr;
  int32_t position = 0;
  int32_t rotation = 0;   // the row of the table of rotations for this position
  int32_t first_row = 0;  // the row of keys and values for position 0
  SampleRequest asked;
  int32_t* numbers = nullptr;
  SampleRequest* request = nullptr;
};
void StepOnChosen(Stream stream, const ChosenStep& step);

}  // namespace shiftrt::gpu
