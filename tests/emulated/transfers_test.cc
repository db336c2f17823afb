// SPDX-License-Identifier: Apache-2.0
// Tests the bytes that an evaluation copies between host and device, which the emulator counts.
#include <gtest/gtest.h>

#include "engine/generate.h"
#include "eval/evaluate.h"
#include "eval/perplexity.h"
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#include "tests/cuda/models.h"
#include "tests/eval/fixtures.h"

namespace shiftrt {
namespace {

class Transfers : public testing::Test {
 protected:
  Transfers() {
    model_.name = "a test";
    model_.tokenizer = LoadTokenizer(Goldens() / "tokenizers/llama2-json");
    model_.weights = MakeWeights(
        {.hidden = 256, .heads = 1, .vocab = static_cast<int>(Expected()["config"]["vocab_size"]), .layers = 3},
        DType::kFloat32);
    model_.plan = DepthPlan::Original(3);
  }
  int64_t Hidden() const { return model_.weights->config.hidden; }

  Model model_;
  Context context_ = On(Device::kCuda);
  NoProgress quiet_;
};

// An evaluation uploads token ids and indices of sequences, and downloads two numbers per scored row. The stream that
// the variants share stays on the device.
TEST_F(Transfers, AnEvaluationTakesTokenIdsInAndScoresOut) {
  Dataset dataset = GoldenDataset("hellaswag");
  const std::vector<Variant> variants = {Plain("original", model_.plan),
                                         Plain("without 1", DepthPlan::Pruned(3, std::vector<int64_t>{1})),
                                         Plain("without 2", DepthPlan::Pruned(3, std::vector<int64_t>{2}))};
  const auto evaluate = [&](const Context& context) {
    Journal none("");
    return Evaluate({context, model_, variants, {}, none, quiet_}, dataset);
  };
  evaluate(context_);  // uploads the weights
  const int64_t in = emu::BytesToDevice(), out = emu::BytesToHost();
  const EvalScores scores = evaluate(context_);
  const auto passes = std::ssize(variants);
  EXPECT_EQ(scores.cost.shared_stages, 1);
  EXPECT_EQ(emu::BytesToHost() - out,
            passes * scores.cost.head_rows * static_cast<int64_t>(sizeof(float) + sizeof(int32_t)));
  const int64_t stream = scores.cost.tokens_computed * Hidden() * static_cast<int64_t>(sizeof(float));
  EXPECT_LT(emu::BytesToDevice() - in, stream / 4);
  const EvalScores expected = evaluate(On(Device::kCpu));
  for (size_t v = 0; v < variants.size(); ++v)
    for (size_t i = 0; i < dataset.items.size(); ++i)
      for (size_t p = 0; p < dataset.items[i].prompts.size(); ++p)
        EXPECT_NEAR(scores.scores[v][i][p].log_likelihood, expected.scores[v][i][p].log_likelihood, 1e-3);
}

TEST_F(Transfers, PerplexityBringsOverScoresAlone) {
  std::vector<int32_t> tokens(60);
  for (size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<int32_t>(t * 7 % 50);
  PlanTree plan(context_, model_.weights, {model_.plan});
  const int64_t in = emu::BytesToDevice(), out = emu::BytesToHost();
  const TextPerplexity result = WindowedPerplexities(plan, tokens, 20, quiet_).front();
  EXPECT_EQ(emu::BytesToHost() - out, result.predicted * static_cast<int64_t>(sizeof(float)));
  EXPECT_LT(emu::BytesToDevice() - in, std::ssize(tokens) * Hidden() * static_cast<int64_t>(sizeof(float)) / 4);
}

// A reply after its prompt: the device goes on by itself, and the host is told ids. One launch per token says where the
// token stands.
TEST_F(Transfers, AGeneratedTokenUploadsNothingAndBringsOverItsId) {
  Decoder decoder(context_, model_.weights, model_.plan);
  const std::vector<int32_t> prompt = {1, 2, 3};
  struct Cost {
    int64_t in, out, launches;
  };
  const auto cost = [&](int64_t count) {
    KvCache cache(model_.weights->config, model_.plan, 40);
    const Cost before{emu::BytesToDevice(), emu::BytesToHost(), emu::Launches()};
    Continue(decoder, cache, prompt, {count, {}, 0, {}, {}});
    return Cost{emu::BytesToDevice() - before.in, emu::BytesToHost() - before.out, emu::Launches() - before.launches};
  };
  cost(1);  // uploads the weights
  const Cost few = cost(2), many = cost(10);
  EXPECT_EQ(many.in, few.in);
  EXPECT_EQ(many.out - few.out, 8 * 4);
  const int64_t ends = 4;  // embedding, head, choice, and where the token stands
  EXPECT_EQ(many.launches - few.launches, 8 * (5 * 3 + ends));
}

// Launches are what a small model's decoding costs: five per block, of which three are its attention's, however many
// blocks share the keys.
TEST_F(Transfers, ADecodedTokenTakesFewLaunches) {
  const auto launches = [&](const DepthPlan& plan, int64_t capacity = 20) {
    Decoder decoder(context_, model_.weights, plan);
    KvCache cache(model_.weights->config, plan, capacity);
    const std::vector<int32_t> tokens = {1, 2, 3};
    decoder.NextToken(tokens, cache, {}, 0);
    const int64_t before = emu::Launches();
    decoder.NextToken(std::span(tokens).first(1), cache, {}, 0);
    return emu::Launches() - before;
  };
  const int64_t none = launches({}), hidden = Hidden();
  EXPECT_EQ(launches({{BlockStage{0}}}) - none, 5);
  EXPECT_EQ(launches({{BlockStage{0}}}, 300) - none, 5);
  EXPECT_EQ(launches(model_.plan) - none, 15);
  EXPECT_EQ(launches({{BlockStage{0, Halves::kAttention}}}) - none, 3);
  EXPECT_EQ(launches({{BlockStage{0, Halves::kMlp}}}) - none, 2);
  const auto full =
      std::make_shared<const Lra>(Lra{Matrix<float>::Zeros(hidden, hidden), {}, {}, Matrix<float>::Zeros(1, hidden)});
  const auto low_rank = std::make_shared<const Lra>(
      Lra{{}, Matrix<float>::Zeros(hidden, 8), Matrix<float>::Zeros(8, hidden), Matrix<float>::Zeros(1, hidden)});
  for (const auto& lra : {full, low_rank}) EXPECT_EQ(launches({{AdapterStage{{0}, lra}}}) - none, 1);
}

}  // namespace
}  // namespace shiftrt
