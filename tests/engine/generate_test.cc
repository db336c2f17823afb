// SPDX-License-Identifier: Apache-2.0
#include "engine/generate.h"

#include <limits>
#include <map>
#include <set>

#include "runtime/check.h"
#include "tests/engine/golden.h"
#include "tests/engine/sample_cases.h"

namespace shiftrt {
namespace {

using test::CorrectedPlan;
using test::Golden;
using test::OneSequence;

TEST(Generate, GreedyIsRepeatedArgmax) {
  const auto weights = GoldenWeights("qwen3_tied");
  std::vector<int32_t> text = {5, 17, 40};
  Decoder decoder(Context::Default(), weights, DepthPlan::Original(3));
  const auto reply = Generate(decoder, text, 6, {}, 0, {});
  ASSERT_EQ(reply.tokens.size(), 6u);
  for (int32_t token : reply.tokens) {
    const auto h = decoder.Forward(OneSequence(text));
    const Matrix<float> logits = decoder.Logits(h.Slice(h.count() - 1, 1));
    EXPECT_EQ(token, std::max_element(logits.row(0), logits.row(0) + logits.cols()) - logits.row(0));
    text.push_back(token);
  }
}

// Sequences that are continued together, of different lengths and at different places, choose what each chooses alone.
TEST(Generate, ManyTogetherReplyAsEachDoesAlone) {
  for (const char* name : {"llama3_tied", "phi3", "gemma2", "olmo3", "smollm3", "granite"}) {
    const auto weights = GoldenWeights(name);
    const auto tokens = Golden(name).tokens();
    std::vector<std::vector<int32_t>> prompts;
    for (const size_t length : {3u, 1u, 12u, 7u, 2u, 9u, 5u})
      prompts.emplace_back(tokens.begin(), tokens.begin() + length);
    for (const DepthPlan& plan : {DepthPlan::Original(weights->config.layers), CorrectedPlan(*weights)}) {
      Decoder decoder(Context::Default(), weights, plan);
      for (const SamplingOptions& sampling : {SamplingOptions{}, {0.9, 0.95, 40}}) {
        const std::vector<int32_t> stop = {Generate(decoder, prompts[2], 9, sampling, 13, {}).tokens[4]};
        for (const int64_t batch : {1, 3, 16}) {
          std::map<size_t, std::vector<int32_t>> replies;
          std::set<size_t> stopped;
          const auto on_stop = [&](size_t i, int32_t token) {
            EXPECT_EQ(token, stop[0]);
            EXPECT_FALSE(replies.contains(i));
            stopped.insert(i);
          };
          const GenerationTotals counts = GenerateMany(decoder, prompts, {9, sampling, 11, stop, batch, {}, on_stop},
                                                       [&](size_t i, auto reply) { replies[i] = std::move(reply); });
          ASSERT_EQ(replies.size(), prompts.size());
          EXPECT_EQ(counts.prompt_tokens, 39);
          int64_t generated = 0;
          for (const auto& [i, reply] : replies) {
            EXPECT_EQ(reply, Generate(decoder, prompts[i], 9, sampling, 11 + i, stop).tokens) << name << " " << i;
            generated += std::ssize(reply);
            EXPECT_EQ(stopped.contains(i), reply.size() < 9u) << name << " " << i;
          }
          EXPECT_EQ(counts.tokens, generated);
          EXPECT_LT(replies[2].size(), 9u) << "it stops";
        }
      }
    }
  }
}

TEST(Generate, LongPromptsTakeSeveralStepsWithOtherReplies) {
  const auto weights = GoldenWeights("llama2");
  Decoder decoder(Context::Default(), weights, DepthPlan::Original(3));
  Random random(5);
  std::vector<std::vector<int32_t>> prompts(20, std::vector<int32_t>(240));  // more than one step takes
  for (auto& prompt : prompts)
    for (int32_t& token : prompt) token = static_cast<int32_t>(random.Below(97));
  prompts[0].resize(2);
  GenerateMany(decoder, prompts, {8, {}, 0, {}, 20}, [&](size_t i, const std::vector<int32_t>& reply) {
    EXPECT_EQ(reply, Generate(decoder, prompts[i], 8, {}, i, {}).tokens) << i;
  });
  GenerateMany(decoder, prompts, {8, {}, 0, {}, 5, [](size_t i, int32_t) { return i != 3; }},
               [&](size_t i, const std::vector<int32_t>& reply) { EXPECT_EQ(reply.size(), i == 3 ? 1u : 8u); });
  int none = 0;
  const auto empty = [&](size_t, const std::vector<int32_t>& reply) { none += reply.empty() ? 1 : 0; };
  GenerateMany(decoder, prompts, {0, {}, 0, {}, 2}, empty);
  EXPECT_EQ(none, 20);
  GenerateMany(decoder, {}, {8, {}, 0, {}, 2}, empty);
  EXPECT_EQ(none, 20);
  EXPECT_THROW(GenerateMany(decoder, prompts, {20, {}, 0, {}, 2}, empty), Error) << "beyond the context";
  EXPECT_THROW(GenerateMany(decoder, prompts, {8, {}, 0, {}, 0}, empty), Error);
  // A token that does not exist is found before any work.
  std::vector<std::vector<int32_t>> wrong = prompts;
  wrong.back().push_back(1'000'000);
  const auto never = [](size_t, const std::vector<int32_t>&) { FAIL(); };
  EXPECT_THROW(GenerateMany(decoder, wrong, {1, {}, 0, {}, 1}, never), Error);
}

TEST(Generate, SamplingFollowsTheDistributionAndItsCuts) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), -50};
  Random random(3);
  std::vector<int> counts(4, 0);
  for (int i = 0; i < 8000; ++i) ++counts[SampleToken(logits, {1.0, 1.0, 0}, random.Uniform())];
  EXPECT_NEAR(counts[0] / 8000.0, 0.125, 0.015);
  EXPECT_NEAR(counts[2] / 8000.0, 0.625, 0.02);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(SampleToken(logits, {1.0, 1.0, 1}, random.Uniform()), 2);
    EXPECT_EQ(SampleToken(logits, {1.0, 0.5, 0}, random.Uniform()), 2);
    EXPECT_NE(SampleToken(logits, {1.0, 0.8, 0}, random.Uniform()), 0);
  }
}

TEST(Generate, SamplingChoosesByItsDefinition) {
  for (const test::SampleCase& c : test::SampleCases()) c.Expect(SampleToken);
  for (const std::vector<float>& logits : test::SamplesOfNaN())
    for (const double temperature : {0.0, 1.0}) EXPECT_THROW(SampleToken(logits, {temperature, 0.9, 40}, 0.5), Error);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<float> logits = {1, 2};
  EXPECT_THROW(SampleToken(logits, {nan, 0.9, 40}, 0.5), Error);
  EXPECT_THROW(SampleToken(logits, {1.0, nan, 40}, 0.5), Error);
}

}  // namespace
}  // namespace shiftrt
