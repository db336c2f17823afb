// SPDX-License-Identifier: Apache-2.0
// Losses of packed batches against a float64 softmax of the decoder's own logits.
#include "engine/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

// Sequences of 5, 1 and 3 tokens: the second predicts nothing.
Batch ThreeSequences() {
  Batch batch;
  batch.Add(std::vector<int32_t>{3, 1, 4, 1, 5});
  batch.Add(std::vector<int32_t>{9});
  batch.Add(std::vector<int32_t>{2, 6, 5});
  return batch;
}

TEST(Loss, IsOfEveryTokenButTheFirstOfItsSequence) {
  const auto weights = GoldenWeights("qwen2_tied");
  Decoder decoder(Context::Default(), weights, DepthPlan::Original(weights->config.layers));
  const Batch batch = ThreeSequences();
  EXPECT_EQ(PredictedTokens(batch), 6);
  EXPECT_EQ(PredictedTokens(std::vector<Batch>{batch, Batch(), batch}), 12);
  const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
  std::vector<double> expected;
  for (int64_t t = 0; t + 1 < batch.size(); ++t) {
    if (t == 4 || t == 5) continue;  // the last rows of the first two sequences
    double sum = 0;
    for (int64_t v = 0; v < logits.cols(); ++v) sum += std::exp(static_cast<double>(logits(t, v)));
    expected.push_back(std::log(sum) - logits(t, batch.tokens[t + 1]));
  }
  const std::vector<float> losses = TokenLosses(decoder, batch, decoder.Forward(batch));
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5) << i;
  const std::vector<double> sums = SequenceLosses(decoder, batch, decoder.Forward(batch));
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_NEAR(sums[0], expected[0] + expected[1] + expected[2] + expected[3], 1e-4);
  EXPECT_EQ(sums[1], 0);
  EXPECT_NEAR(sums[2], expected[4] + expected[5], 1e-4);
  EXPECT_EQ(SummedLoss(decoder, batch, decoder.Forward(batch)), sums[0] + sums[1] + sums[2]);
}

}  // namespace
}  // namespace shiftrt
