// SPDX-License-Identifier: Apache-2.0
// A trained checkpoint against another implementation's numbers. The data is not in the repository: see
// CONTRIBUTING.md.
#include "engine/decoder.h"
#include "tests/engine/stories260k.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {
namespace {

using test::Stories260K;

// The numbers are those of llama2.c (github.com/karpathy/llama2.c, run.c) on the same checkpoint and tokens.
TEST_F(Stories260K, NegativeLogLikelihoodIsTheReferences) {
  const auto weights = LoadWeights(checkpoint_);
  Decoder decoder(Context::Default(), weights, DepthPlan::Original(weights->config.layers));
  double total = 0;
  int64_t predicted = 0;
  std::vector<double> sums;
  for (const auto& story : stories_) {
    Batch batch;
    batch.Add(story);
    const Rows h = decoder.Forward(batch);
    double sum = 0;
    for (float log_prob : decoder.LogProbs(h.Slice(0, h.count() - 1), std::span(story).subspan(1))) sum -= log_prob;
    sums.push_back(sum);
    total += sum;
    predicted += h.count() - 1;
  }
  EXPECT_EQ(predicted, 25151);
  EXPECT_NEAR(total / static_cast<double>(predicted), 1.362103, 1e-6);
  const double first[] = {317.4378, 400.9031, 330.8789};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(sums[i], first[i], 2e-4) << "story " << i;
}

TEST_F(Stories260K, TokensComeBackFromTheirText) {
  const auto tokenizer = LoadTokenizer(checkpoint_);
  int compared = 0;
  for (const auto& story : stories_) {
    if (story.size() == 256) continue;  // cut, perhaps in mid-word
    ++compared;
    EXPECT_EQ(tokenizer->EncodeWithBos(tokenizer->Decode(story, /*skip_special=*/true)), story);
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace shiftrt
