// SPDX-License-Identifier: Apache-2.0
#include "eval/scorer.h"

#include "runtime/not_finite.h"

namespace shiftrt {

std::vector<Score> ScoreBatch(Decoder& decoder, const PackedBatch& packed, const Rows& stream) {
  std::vector<int32_t> likeliest(packed.rows.size());
  const std::vector<float> log_probs = decoder.LogProbs(stream, packed.rows, packed.targets, likeliest);
  std::vector<Score> scores;
  for (const PackedBatch::Member& member : packed.members) {
    Score score;
    for (const int64_t pair : member.pairs) {
      score.log_likelihood += log_probs[pair];
      score.greedy &= likeliest[pair] == packed.targets[pair];
    }
    CheckIsFinite(score.log_likelihood, "a log-likelihood is not finite");
    scores.push_back(score);
  }
  return scores;
}

}  // namespace shiftrt
