// SPDX-License-Identifier: Apache-2.0
// Token log-probabilities over a vocabulary that is processed in chunks (kernels/logprob.h), so that no array of
// tokens x vocabulary is needed.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// The softmax of a token over the vocabulary processed so far.
struct TokenScore {
  double sum = 0;  // sum of exp(logit - maximum)
  float maximum = 0, target = 0;
  int32_t best = 0;
};

struct LogitChunk {
  const float* logits = nullptr;  // (tokens, cols) dense: columns first .. first + cols - 1 of the vocabulary
  int64_t tokens = 0, cols = 0, first = 0, vocab = 0;
};
// Adds one chunk to `scores` (tokens). Chunks must be given in order. The chunk with first = 0 initialises the scores.
// The chunk that ends at `vocab` also writes log_probs[t] = log softmax(logits)[targets[t]] (natural logarithm) and
// argmax[t] (the lowest id on a tie). A NaN among the logits gives a NaN.
void UpdateScores(Stream stream, const LogitChunk& chunk, const int32_t* targets, TokenScore* scores, float* log_probs,
                  int32_t* argmax);

}  // namespace shiftrt::gpu
