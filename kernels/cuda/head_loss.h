// SPDX-License-Identifier: Apache-2.0
// Loss and gradient of logits over a vocabulary that is processed in chunks, twice (kernels/logprob.h): once for the
// losses, and once more, with the logits computed again, for the gradients. No array of tokens x vocabulary is needed.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// The softmax of a token, and of its teacher, over the vocabulary processed so far.
struct LossState {
  double sum = 0;          // sum of exp(logit - maximum)
  double teacher_sum = 0;  // sum of exp(teacher's logit - its maximum)
  double between = 0;      // sum of exp(teacher's logit - its maximum) * (teacher's logit - logit)
  float maximum = 0, teacher_maximum = 0, target = 0;
};

// Columns first .. first + cols - 1 of the vocabulary.
struct LossChunk {
  const float* logits = nullptr;   // (tokens, cols) dense, before the soft cap
  const float* teacher = nullptr;  // likewise; null: there is none
  int64_t tokens = 0, cols = 0, first = 0, vocab = 0;
  float soft_cap = 0;  // 0: none
};

// A token's loss is cross_entropy * -log softmax(logits)[target] + divergence * KL(teacher || logits).
struct LossTerms {
  const int32_t* targets = nullptr;  // (tokens), in device memory
  float cross_entropy = 1;
  float divergence = 0;
  const float* scales = nullptr;  // (tokens), in device memory: what gradients are multiplied by
};

// Adds one chunk to `states` (tokens). Chunks must be given in order. The chunk with first = 0 initialises the states,
// and the chunk that ends at `vocab` also writes losses (tokens), in nats. A NaN among the logits gives a NaN. Cost:
// reads the logits twice, the second time from a cache; one launch.
void UpdateLoss(Stream stream, const LossChunk& chunk, const LossTerms& terms, LossState* states, float* losses);

// out (tokens, cols), in its type and with rows `stride` elements apart, = scales[t] times the gradient of the loss of
// token t with respect to the chunk's logits before the soft cap. `states` have seen all chunks. Cost: reads the
// logits, writes out; one launch.
void LossGradient(Stream stream, const LossChunk& chunk, const LossTerms& terms, const LossState* states,
                  DeviceArray out, int64_t stride);

}  // namespace shiftrt::gpu
