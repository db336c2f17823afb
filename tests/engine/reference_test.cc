// SPDX-License-Identifier: Apache-2.0
// The engine against a decoder in plain C++ and float64 (tests/reference/llama.h), on plans that transformers cannot
// run: without blocks, with half blocks, and with adapters.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/decoder.h"
#include "tests/engine/golden.h"
#include "tests/reference/llama.h"

namespace shiftrt {
namespace {

class AgainstReference : public testing::TestWithParam<std::string> {
 protected:
  // The largest difference of a logit, as a share of the largest logit.
  static double Difference(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan) {
    const std::vector<int32_t> tokens = test::Golden(GetParam()).tokens();
    Decoder decoder(Context::Default(), weights, plan);
    const Matrix<float> logits = decoder.Logits(decoder.Forward(test::OneSequence(tokens)));
    const test::Stream expected = test::ReferenceLlama(*weights).Logits(tokens, plan);
    double largest = 0, worst = 0;
    for (int64_t t = 0; t < logits.rows(); ++t)
      for (int64_t i = 0; i < logits.cols(); ++i) {
        largest = std::max(largest, std::abs(expected[t][i]));
        worst = std::max(worst, std::abs(expected[t][i] - logits(t, i)));
      }
    EXPECT_GT(largest, 0.1);
    return worst / largest;
  }
};

TEST_P(AgainstReference, EveryKindOfPlan) {
  const auto weights = GoldenWeights(GetParam());
  const int64_t layers = weights->config.layers;
  const std::vector<int64_t> first = {0};
  const std::vector<BlockPart> halves = {BlockPart(0, Halves::kAttention), BlockPart(layers - 1, Halves::kMlp)};
  for (const DepthPlan& plan : {DepthPlan::Original(layers), DepthPlan::Pruned(layers, first),
                                DepthPlan::Pruned(layers, halves), test::CorrectedPlan(*weights)})
    EXPECT_LE(Difference(weights, plan), 1e-5) << plan.stages.size() << " stages";
}

TEST_P(AgainstReference, ADifferenceInOnePlaceIsSeen) {
  const auto weights = GoldenWeights(GetParam());
  const DepthPlan original = DepthPlan::Original(weights->config.layers);
  const std::vector<int32_t> tokens = test::Golden(GetParam()).tokens();
  const test::ReferenceLlama reference(*weights);
  const test::Stream a = reference.Logits(tokens, original),
                     b = reference.Logits(tokens, test::CorrectedPlan(*weights));
  double worst = 0;
  for (size_t i = 0; i < a.back().size(); ++i) worst = std::max(worst, std::abs(a.back()[i] - b.back()[i]));
  EXPECT_GT(worst, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstReference, testing::Values("llama2", "llama_odd", "qwen2_tied", "mistral"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shiftrt
