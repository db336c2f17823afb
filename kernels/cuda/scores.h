// Token log-probabilities over a vocabulary that comes in chunks (kernels/logprob.h): what is kept of a batch instead
// of an array of tokens x vocabulary.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// A token's softmax over the vocabulary seen so far.
struct TokenScore {
  double sum = 0;  // of exp(logit - maximum)
  float maximum = 0, target = 0;
  int32_t best = 0;
};

struct LogitChunk {
  const float* logits = nullptr;  // (tokens, cols) dense: columns first .. first + cols - 1 of the vocabulary
  int64_t tokens = 0, cols = 0, first = 0, vocab = 0;
};
// Takes one chunk into `scores` (tokens), which the chunk with first = 0 starts and the one that ends at `vocab`
// finishes: log_probs[t] = log softmax(logits)[targets[t]], natural logarithm, and argmax[t], lowest id on a tie.
// Chunks come in order. A NaN among the logits makes a NaN.
void UpdateScores(Stream stream, const LogitChunk& chunk, const int32_t* targets, TokenScore* scores, float* log_probs,
                  int32_t* argmax);

}  // namespace shiftrt::gpu
