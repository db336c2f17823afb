// SPDX-License-Identifier: Apache-2.0
// Log-likelihoods of requests. Knows nothing of tasks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/packing.h"
#include "runtime/progress.h"

namespace shiftrt {

struct Score {
  double log_likelihood = 0;  // sum of log softmax over the scored tokens, natural logarithm
  bool greedy = true;         // every one of them was the likeliest
};

// The scores of the members of `packed`, in their order, from the residual stream after the last stage
// (packed.batch.size(), hidden), on the decoder's device. The head runs on the wanted rows only, with the log-sum-exp
// computed block by block over the vocabulary (kernels/logprob.h). Throws Error for a score that is not finite.
std::vector<Score> ScoreBatch(Decoder& decoder, const PackedBatch& packed, const Rows& stream);

}  // namespace shiftrt
