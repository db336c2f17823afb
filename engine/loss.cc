// SPDX-License-Identifier: Apache-2.0
#include "engine/loss.h"

#include <algorithm>
#include <numeric>

namespace shiftrt {

namespace {

int64_t PredictedTokens(const Batch& batch, int64_t sequence) {
  return std::max<int64_t>(0, batch.offsets[sequence + 1] - batch.offsets[sequence] - 1);
}

}  // namespace

int64_t PredictedTokens(const Batch& batch) {
  int64_t predicted = 0;
  for (int64_t s = 0; s < batch.sequences(); ++s) predicted += PredictedTokens(batch, s);
  return predicted;
}

int64_t PredictedTokens(const std::vector<Batch>& batches) {
  int64_t predicted = 0;
  for (const Batch& batch : batches) predicted += PredictedTokens(batch);
  return predicted;
}

std::vector<float> TokenLosses(Decoder& decoder, const Batch& batch, const Rows& stream) {
  std::vector<float> losses;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    // Row t predicts token t + 1; the last row of a sequence predicts nothing.
    const int64_t begin = batch.offsets[s], predicted = PredictedTokens(batch, s);
    if (predicted == 0) continue;
    const auto targets = std::span(batch.tokens).subspan(begin + 1, predicted);
    for (const float log_prob : decoder.LogProbs(stream.Slice(begin, predicted), targets)) losses.push_back(-log_prob);
  }
  return losses;
}

std::vector<double> SequenceLosses(Decoder& decoder, const Batch& batch, const Rows& stream) {
  const std::vector<float> losses = TokenLosses(decoder, batch, stream);
  std::vector<double> sums;
  auto next = losses.begin();
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const auto begin = next;
    next += PredictedTokens(batch, s);
    sums.push_back(std::accumulate(begin, next, 0.0));
  }
  return sums;
}

double SummedLoss(Decoder& decoder, const Batch& batch, const Rows& stream) {
  const std::vector<double> sums = SequenceLosses(decoder, batch, stream);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace shiftrt
