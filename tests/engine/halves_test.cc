// SPDX-License-Identifier: Apache-2.0
// Plans that run one half of a block, attention or MLP.
#include "runtime/check.h"
#include "tests/engine/golden.h"

namespace shiftrt {
namespace {

using test::Copied;
using test::Golden;
using test::LargestDifference;
using test::OneSequence;

// The block's halves as two stages each.
DepthPlan Split(int64_t layers) {
  DepthPlan plan;
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const Halves halves : {Halves::kAttention, Halves::kMlp}) plan.stages.push_back(BlockStage{layer, halves});
  return plan;
}

// Block 1 with the output matrix of one half, and its bias, folded to zeros.
DepthPlan Silenced(const Weights& weights, Halves half, const std::vector<float>& zeros) {
  auto block = std::make_shared<BlockWeights>(weights.blocks[1]);
  const bool attention = half == Halves::kAttention;
  TensorView& matrix = attention ? block->o : block->down;
  matrix = {zeros.data(), DType::kFloat32, matrix.shape};
  (attention ? block->o_bias : block->down_bias) = {};
  DepthPlan plan = DepthPlan::Original(weights.config.layers);
  plan.stages[1] = BlockStage{1, Halves::kBoth, block};
  return plan;
}

DepthPlan WithoutHalf(int64_t layers, int64_t layer, Halves left) {
  DepthPlan plan = DepthPlan::Original(layers);
  plan.stages[layer] = BlockStage{layer, left};
  return plan;
}

TEST(Halves, TwoStagesAreTheWholeBlockAndOneIsTheBlockWithTheOtherSilent) {
  for (const char* name : {"llama_bias", "qwen3"}) {
    const auto weights = GoldenWeights(name);
    const auto tokens = Golden(name).tokens();
    const int64_t layers = weights->config.layers;
    const std::vector<float> zeros(weights->blocks[1].down.elements() + weights->blocks[1].o.elements(), 0.0f);
    const auto stream = [&](const DepthPlan& plan) {
      Decoder decoder(Context::Default(), weights, plan);
      return Copied(decoder.Forward(OneSequence(tokens)));
    };
    EXPECT_EQ(LargestDifference(stream(Split(layers)).view(), stream(DepthPlan::Original(layers)).view()), 0);
    EXPECT_EQ(LargestDifference(stream(WithoutHalf(layers, 1, Halves::kMlp)).view(),
                                stream(Silenced(*weights, Halves::kAttention, zeros)).view()),
              0);
    EXPECT_EQ(LargestDifference(stream(WithoutHalf(layers, 1, Halves::kAttention)).view(),
                                stream(Silenced(*weights, Halves::kMlp, zeros)).view()),
              0);
  }
}

TEST(Halves, KeepKeysAndValuesOfTheAttentionsThatRun) {
  const auto weights = GoldenWeights("llama3_tied");
  const auto tokens = Golden("llama3_tied").tokens();
  const int64_t layers = weights->config.layers;
  DepthPlan plan = WithoutHalf(layers, 0, Halves::kMlp);
  plan.stages[1] = BlockStage{1, Halves::kAttention};
  for (const DepthPlan& some : {plan, Split(layers)}) {
    Decoder decoder(Context::Default(), weights, some);
    const Matrix<float> whole = Copied(decoder.Forward(OneSequence(tokens)));
    KvCache cache(weights->config, some, std::ssize(tokens));
    decoder.Forward(std::span(tokens).first(4), cache);
    for (size_t t = 4; t < tokens.size(); ++t) {
      const Rows h = decoder.Forward(std::span(tokens).subspan(t, 1), cache);
      EXPECT_LE(LargestDifference(h.host(), whole.view().Rows(static_cast<int64_t>(t), 1)), 2e-5) << t;
    }
  }
  Decoder decoder(Context::Default(), weights, plan);
  KvCache of_all(weights->config, DepthPlan::Original(layers), 8);
  EXPECT_THROW(decoder.Forward(std::span(tokens).first(4), of_all), Error);
}

TEST(Halves, AreTappedWhereTheyRun) {
  const auto weights = GoldenWeights("llama_bias");
  const auto tokens = Golden("llama_bias").tokens();
  const auto seen = [&](const DepthPlan& plan, TapPoint point) {
    std::vector<Matrix<float>> received;
    Decoder decoder(Context::Default(), weights, plan,
                    {{1, point, [&](const Rows& h, const Batch&) { received.push_back(Copied(h)); }}});
    decoder.Forward(OneSequence(tokens), /*taps_only=*/true);
    return received;
  };
  const DepthPlan whole = DepthPlan::Original(3), attention_alone = WithoutHalf(3, 1, Halves::kAttention),
                  mlp_alone = WithoutHalf(3, 1, Halves::kMlp);
  const auto attention = seen(whole, TapPoint::kAttention), mlp = seen(whole, TapPoint::kMlp),
             update = seen(whole, TapPoint::kUpdate);
  ASSERT_EQ(attention.size(), 1u);
  for (int64_t i = 0; i < update[0].size(); ++i)
    EXPECT_EQ(attention[0].data()[i] + mlp[0].data()[i], update[0].data()[i]);
  // The update of one half is that half's own.
  EXPECT_EQ(LargestDifference(seen(attention_alone, TapPoint::kUpdate)[0].view(), attention[0].view()), 0);
  EXPECT_EQ(LargestDifference(seen(mlp_alone, TapPoint::kUpdate)[0].view(), seen(mlp_alone, TapPoint::kMlp)[0].view()),
            0);
  // A tap sees each of two stages.
  const auto split = seen(Split(3), TapPoint::kUpdate);
  ASSERT_EQ(split.size(), 2u);
  EXPECT_EQ(LargestDifference(split[0].view(), attention[0].view()), 0);
  EXPECT_EQ(LargestDifference(split[1].view(), mlp[0].view()), 0);
  EXPECT_EQ(seen(Split(3), TapPoint::kMlp).size(), 1u);

  EXPECT_THROW(seen(attention_alone, TapPoint::kMlp), Error);
  EXPECT_THROW(seen(mlp_alone, TapPoint::kAttention), Error);
  Decoder decoder(Context::Default(), weights, whole, {{1, TapPoint::kMlp, [](const Rows&, const Batch&) {}}});
  const Matrix<float> h = Copied(decoder.Forward(OneSequence(tokens)));
  EXPECT_THROW(decoder.Resume(OneSequence(tokens), h.view(), attention_alone.stages), Error);
}

TEST(Halves, StandInTheOrderOfTheModel) {
  const auto weights = GoldenWeights("llama2");
  for (const auto& [first, second] :
       {std::pair(Halves::kMlp, Halves::kAttention), {Halves::kMlp, Halves::kMlp}, {Halves::kBoth, Halves::kMlp}}) {
    const DepthPlan plan{{BlockStage{1, first}, BlockStage{1, second}}};
    EXPECT_THROW(Decoder(Context::Default(), weights, plan), Error);
  }
}

}  // namespace
}  // namespace shiftrt
