// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/criteria.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/check.h"

namespace shiftrt {
namespace {

using Layers = std::vector<BlockPart>;
using Indices = std::vector<int64_t>;

// Only the layer count and the tensors that magnitude looks at.
CriterionInput Input(int64_t layers) {
  auto weights = std::make_shared<Weights>();
  weights->config.layers = layers;
  CriterionInput input;
  input.weights = std::move(weights);
  return input;
}

Selection Select(const std::string& prune, int64_t layers) {
  NoProgress progress;
  return SelectLayers(ParsePrune(prune), Input(layers), progress);
}

TEST(Ranking, LowestFirstAndTiesToTheDeeper) {
  EXPECT_EQ(Ranking({5, 1, 4, 0, 3}, 0, 5), (Indices{3, 1, 4, 2, 0}));
  EXPECT_EQ(Ranking({1, 1, 1, 1, 0.5}, 0, 5), (Indices{4, 3, 2, 1, 0}));
  EXPECT_EQ(Ranking({0, 9, 8, 0}, 1, 3), (Indices{2, 1}));
  EXPECT_TRUE(Ranking({0, 0}, 2, 1).empty());
}

TEST(ParsePrune, ReadsRatiosCountsAndOptions) {
  EXPECT_EQ(ParsePrune("bi:0.25").criterion, "bi");
  EXPECT_EQ(ParsePrune("bi:0.25").ratio, 0.25);
  EXPECT_EQ(ParsePrune("bi:frobenius:0.25").criterion, "bi:frobenius");
  EXPECT_EQ(ParsePrune("bi:frobenius:8").count, 8);
  EXPECT_EQ(ParsePrune("reverse*:8").criterion, "reverse*");
  const PruneSpec spec = ParsePrune("magnitude-l1:3,keep=first:4,last:2");
  EXPECT_EQ(spec.criterion, "magnitude-l1");
  EXPECT_EQ(spec.count, 3);
  EXPECT_EQ(spec.keep_first, 4);
  EXPECT_EQ(spec.keep_last, 2);
  EXPECT_EQ(Format(spec), "magnitude-l1:3,keep=first:4,keep=last:2");
  EXPECT_EQ(ParsePrune("bi:1,keep=last:2").keep_last, 2);
  EXPECT_EQ(ParsePrune("layers=3,5,8-10").layers, (Layers{3, 5, 8, 9, 10}));
  EXPECT_EQ(ParsePrune("layers=7").layers, (Layers{7}));
  EXPECT_EQ(ParsePrune("bi:0.25").unit, Unit::kBlock);
  EXPECT_EQ(ParsePrune("bi:0.25,unit=half,keep=first:1").unit, Unit::kHalf);
  EXPECT_EQ(ParsePrune("bi:0.25,keep=first:1,unit=half").keep_first, 1);
  const BlockPart attention(3, Halves::kAttention), mlp(5, Halves::kMlp);
  EXPECT_EQ(ParsePrune("layers=8-9,3.attn,5.mlp").layers, (Layers{attention, mlp, 8, 9}));
  EXPECT_EQ(ParsePrune("layers=3.attn,3.mlp").layers, (Layers{3}));
  EXPECT_EQ(ParsePrune("layers=2-3.attn,5.mlp-6").layers, (Layers{2, attention, mlp, 6}));
  for (const char* halves : {"bi:0.25,unit=half", "layers=1,3.attn"}) EXPECT_TRUE(ParsePrune(halves).halves());
  for (const char* whole : {"bi:0.25,unit=block", "layers=3.attn,3.mlp"}) EXPECT_FALSE(ParsePrune(whole).halves());
}

TEST(ParsePrune, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"",
                           "bi",
                           "bi:",
                           ":0.25",
                           "bi:token",
                           "bi:x",
                           "bi:-1",
                           "bi:0",
                           "bi:1.0",
                           "bi:nan",
                           "bi:0.25 ",
                           "bi:99999999999999999999",
                           "bi:0.25,",
                           "bi:0.25,last:2",
                           "bi:0.25,keep=middle:2",
                           "bi:0.25,keep=first:-1",
                           "bi:0.25,window=3",
                           "bi:0.25,rank=0",
                           "bi:0.25,rank=4",
                           "ppl:0.25,rank=4",
                           "correctable:0.25,rank=0",
                           "bi:0.25,tokens=x",
                           "bi:params=",
                           "bi:params=nan",
                           "bi:bytes=1e30",
                           "layers=",
                           "layers=3,",
                           "layers=5-3",
                           "layers=3,3",
                           "layers=-1",
                           "layers=0-99999999999",
                           "layers=1-",
                           "layers=3.mlp-3.attn",
                           "layers=3,3.mlp",
                           "layers=3.attention",
                           "layers=.mlp",
                           "bi:0.25,unit=",
                           "bi:0.25,unit=quarter",
                           "tailor:0.25"})
    EXPECT_THROW(ParsePrune(text), UsageError) << text;
}

// Options are the criterion's own; what is not given is what its row of the table says.
TEST(ParsePrune, AsksTheCriterionForItsOptions) {
  for (const Criterion& criterion : Criteria()) {
    const PruneSpec plain = ParsePrune(fmt::format("{}:1", criterion.name));
    for (const CriterionOption& option : criterion.options) {
      EXPECT_EQ(plain.Option(option.name), option.default_value);
      const PruneSpec given = ParsePrune(fmt::format("{}:1,{}=17,keep=last:1", criterion.name, option.name));
      EXPECT_EQ(given.Option(option.name), 17);
      EXPECT_EQ(given.keep_last, 1);
    }
    EXPECT_THROW(plain.Option("window"), Error);
  }
}

TEST(ParsePrune, NamesWhatIsNotThere) {
  const auto message = [](const char* text) -> std::string {
    try {
      ParsePrune(text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("tailor:0.25").find("\"tailor\"; known: bi, bi:frobenius, angular, "), std::string::npos);
  EXPECT_NE(message("bi:params=6.3X").find("params=6.3X"), std::string::npos);
  EXPECT_NE(message("bi:bytes=-1").find("bytes=-1"), std::string::npos);
}

TEST(SelectLayers, ReverseGoesDeepestFirst) {
  EXPECT_EQ(Select("reverse:3", 10).removed, (Layers{7, 8, 9}));
  EXPECT_EQ(Select("reverse*:0.25", 32).removed, (Layers{23, 24, 25, 26, 27, 28, 29, 30}));
  EXPECT_EQ(Select("reverse:0.29", 100).removed.size(), 29u);
  EXPECT_EQ(Select("reverse:3,keep=last:2", 10).removed, (Layers{5, 6, 7}));
  EXPECT_EQ(Select("reverse*:3", 10).scores.size(), 10u);
}

TEST(SelectLayers, RandomIsSeeded) {
  NoProgress progress;
  CriterionInput input = Input(40);
  const PruneSpec spec = ParsePrune("random:8");
  input.seed = 1;
  const Selection first = SelectLayers(spec, input, progress), again = SelectLayers(spec, input, progress);
  input.seed = 2;
  EXPECT_EQ(first.removed, again.removed);
  EXPECT_EQ(first.removed.size(), 8u);
  EXPECT_NE(first.removed, SelectLayers(spec, input, progress).removed);
}

TEST(SelectLayers, TakesAList) {
  const Selection selection = Select("layers=1,4-5", 6);
  EXPECT_EQ(selection.removed, (Layers{1, 4, 5}));
  EXPECT_TRUE(selection.scores.empty());
  EXPECT_THROW(Select("layers=6", 6), UsageError);
  EXPECT_THROW(Select("layers=0-5", 6), UsageError);
}

TEST(SelectLayers, RefusesToRemoveNothingEverythingOrTheKept) {
  EXPECT_THROW(Select("reverse:0.1", 6), UsageError);
  EXPECT_THROW(Select("reverse:6", 6), UsageError);
  EXPECT_THROW(Select("reverse:4,keep=first:2,last:1", 6), UsageError);
  EXPECT_THROW(Select("reverse:1,keep=first:9223372036854775807,last:9223372036854775807", 6), UsageError);
  EXPECT_EQ(Select("reverse:3,keep=first:2,last:1", 6).removed, (Layers{2, 3, 4}));
}

TEST(SelectLayers, BlockInfluenceNeedsText) { EXPECT_THROW(Select("bi:1", 4), Error); }

TEST(Criteria, MagnitudeSumsProjectionsAndNormsInEveryType) {
  // 3 x 11 elements, so that the sums have a tail; 0.5, -1.5 are exact in every type.
  std::vector<float> f32(33, -1.5f);
  f32[32] = 0.5f;
  std::vector<BFloat16> bf16;
  std::vector<Float16> f16;
  for (float x : f32) {
    bf16.push_back(BFloat16(x));
    f16.push_back(Float16(x));
  }
  const TensorView single{f32.data(), DType::kFloat32, {3, 11}}, brain{bf16.data(), DType::kBFloat16, {3, 11}},
      half{f16.data(), DType::kFloat16, {3, 11}}, norm{f32.data(), DType::kFloat32, {11}};
  auto weights = std::make_shared<Weights>();
  weights->config.layers = 2;
  BlockWeights block;
  block.q = block.k = single;
  block.v = block.o = brain;
  block.gate = block.up = block.down = half;
  block.input_norm = block.post_norm = norm;
  block.q_bias = single;  // left out
  weights->blocks = {block, block};
  CriterionInput input;
  input.weights = std::move(weights);
  input.context.threads = 2;
  NoProgress progress;
  const auto score = [&](const char* criterion) {
    return SelectLayers(ParsePrune(criterion), input, progress).scores[0];
  };
  EXPECT_DOUBLE_EQ(score("magnitude-l1:1"), 7 * (32 * 1.5 + 0.5) + 2 * 11 * 1.5);
  EXPECT_DOUBLE_EQ(score("magnitude-l2:1"), 7 * (32 * 2.25 + 0.25) + 2 * 11 * 2.25);
}

}  // namespace
}  // namespace shiftrt
