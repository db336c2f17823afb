// SPDX-License-Identifier: Apache-2.0
// Divergences against a float64 computation from the decoder's own logits.
#include "eval/fidelity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "include/shiftrt/error.h"
#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

struct ExpectedFidelity {
  double divergence = 0, nll_original = 0, nll = 0;
  bool same_top = false;
};

std::vector<double> LogProbabilitiesOf(const float* logits, int64_t count) {
  double sum = 0;
  for (int64_t v = 0; v < count; ++v) sum += std::exp(static_cast<double>(logits[v]));
  std::vector<double> values(count);
  for (int64_t v = 0; v < count; ++v) values[v] = logits[v] - std::log(sum);
  return values;
}

ExpectedFidelity FidelityOracle(const float* original, const float* variant, int64_t count, int32_t token) {
  const std::vector<double> p = LogProbabilitiesOf(original, count), q = LogProbabilitiesOf(variant, count);
  ExpectedFidelity expected{.nll_original = -p[token], .nll = -q[token]};
  for (int64_t v = 0; v < count; ++v) expected.divergence += std::exp(p[v]) * (p[v] - q[v]);
  expected.same_top =
      std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
  return expected;
}

void ExpectNear(const TokenFidelity& found, const ExpectedFidelity& expected, double tolerance) {
  EXPECT_NEAR(found.divergence, expected.divergence, tolerance);
  EXPECT_NEAR(found.nll_original, expected.nll_original, tolerance);
  EXPECT_NEAR(found.nll, expected.nll, tolerance);
  EXPECT_EQ(found.same_top, expected.same_top);
  EXPECT_NEAR(found.DeltaP(), std::exp(-expected.nll) - std::exp(-expected.nll_original), tolerance);
}

std::vector<FidelitySequence> SequencesToCompare() {
  return {{{3, 1, 4, 1, 5}, 1}, {{2, 6, 5, 3, 5, 8}, 3}, {{9, 7}, 2}};  // the last one predicts nothing
}

class ComparedModels : public testing::Test {
 protected:
  std::shared_ptr<const Weights> weights_ = GoldenWeights("qwen2_tied");
  const int64_t layers_ = weights_->config.layers;
  const DepthPlan original_ = DepthPlan::Original(layers_),
                  pruned_ = DepthPlan::Pruned(layers_, std::vector<int64_t>{1});

  void ExpectOracle(const std::vector<SequenceFidelities>& found, const std::shared_ptr<const Weights>& others) {
    ASSERT_EQ(found.size(), size_t{2});
    const std::vector<FidelitySequence> sequences = SequencesToCompare();
    const DepthPlan plans[] = {original_, pruned_};
    for (size_t v = 0; v < 2; ++v) {
      ASSERT_EQ(found[v].size(), sequences.size());
      for (size_t s = 0; s < sequences.size(); ++s) {
        Batch batch;
        batch.Add(sequences[s].tokens);
        Decoder first(Context::Default(), weights_, original_), second(Context::Default(), others, plans[v]);
        const Matrix<float> a = first.Logits(first.Forward(batch)), b = second.Logits(second.Forward(batch));
        ASSERT_EQ(std::ssize(found[v][s]), batch.size() - sequences[s].given);
        for (int64_t t = sequences[s].given; t < batch.size(); ++t) {
          SCOPED_TRACE(fmt::format("variant {}, sequence {}, token {}", v, s, t));
          ExpectNear(found[v][s][t - sequences[s].given],
                     FidelityOracle(a.row(t - 1), b.row(t - 1), a.cols(), batch.tokens[t]), 2e-6);
        }
      }
    }
  }
};

TEST_F(ComparedModels, OfOneModelAreAsAFloat64ComputationSays) {
  NoProgress progress;
  const std::vector<ComparedModel> models = {{weights_, original_}, {weights_, original_}, {weights_, pruned_}};
  const auto found = MeasureTokenFidelity(Context::Default(), models, SequencesToCompare(), progress);
  ExpectOracle(found, weights_);
  for (const std::vector<TokenFidelity>& sequence : found[0])
    for (const TokenFidelity& token : sequence) {
      EXPECT_EQ(token.divergence, 0);
      EXPECT_EQ(token.DeltaP(), 0);
      EXPECT_TRUE(token.same_top);
    }
}

TEST_F(ComparedModels, MayHaveWeightsOfTheirOwn) {
  NoProgress progress;
  const auto others = GoldenWeights("qwen2_tied", DType::kBFloat16);
  const std::vector<ComparedModel> models = {{weights_, original_}, {others, original_}, {others, pruned_}};
  ExpectOracle(MeasureTokenFidelity(Context::Default(), models, SequencesToCompare(), progress), others);
}

TEST_F(ComparedModels, ThatCannotBeComparedAreRefused) {
  NoProgress progress;
  const auto measure = [&](const std::vector<ComparedModel>& models, const std::vector<FidelitySequence>& sequences) {
    return MeasureTokenFidelity(Context::Default(), models, sequences, progress);
  };
  EXPECT_THROW(measure({{weights_, original_}}, SequencesToCompare()), UsageError);
  EXPECT_THROW(measure({{weights_, original_}, {weights_, pruned_}}, {{{9, 7}, 2}}), UsageError);
  EXPECT_THROW(measure({{weights_, original_}, {weights_, pruned_}}, {{{9, 7}, 0}}), UsageError);
}

// The probabilities of the other tokens are 0 in float32, and their logarithms are not.
TEST(Fidelity, CountsAPredictionWhoseProbabilityIsZeroInFloat32) {
  const std::vector<float> original = {0, 1, -500, 2}, variant = {300, 1, -500, 2};
  const auto compared = [](const std::vector<float>& p, const std::vector<float>& q, int32_t token) {
    return CompareLogits(p, RowSoftmax(p), q, token);
  };
  ExpectNear(compared(original, variant, 3), FidelityOracle(original.data(), variant.data(), 4, 3), 1e-4);
  EXPECT_GT(compared(original, variant, 3).divergence, 200);
  EXPECT_EQ(std::exp(-static_cast<float>(compared(original, variant, 3).nll)), 0);
  // The original has no doubt, so that only its token counts.
  ExpectNear(compared(variant, original, 0), FidelityOracle(variant.data(), original.data(), 4, 0), 1e-4);
  EXPECT_NEAR(compared(original, variant, 2).nll_original, 502.4, 0.1);
  // Logits of no probability at all.
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> masked = {0, none}, both = {0, 0};
  EXPECT_NEAR(compared(masked, both, 0).divergence, std::log(2.0), 1e-7);
}

TEST(Fidelity, IsSummarizedAsLlamaCppDoes) {
  std::vector<TokenFidelity> tokens;
  for (const double divergence : {0.4, 0.1, 0.2, 0.3})
    tokens.push_back({divergence, 1, 1 + divergence, divergence < 0.25});
  const Fidelity found = SummarizeFidelity(tokens);
  EXPECT_EQ(found.tokens, 4);
  EXPECT_NEAR(found.mean_kld, 0.25, 1e-15);
  EXPECT_NEAR(found.mean_kld_error, std::sqrt(0.05 / 3 / 4), 1e-15);
  EXPECT_NEAR(found.median_kld, 0.25, 1e-15);
  EXPECT_NEAR(found.kld_90, 0.37, 1e-15);
  EXPECT_NEAR(found.kld_99, 0.397, 1e-15);
  EXPECT_EQ(found.max_kld, 0.4);
  EXPECT_EQ(found.same_top, 0.5);
  EXPECT_NEAR(found.same_top_error, std::sqrt(0.25 / 3), 1e-15);
  EXPECT_NEAR(found.log_perplexity_ratio, 0.25, 1e-15);
  EXPECT_NEAR(found.perplexity / found.perplexity_original, std::exp(0.25), 1e-12);
  EXPECT_LT(found.mean_delta_p, 0);
  EXPECT_GE(found.rms_delta_p, -found.mean_delta_p);
  EXPECT_TRUE(std::isnan(SummarizeFidelity(std::span(tokens).first(1)).mean_kld_error));
  EXPECT_THROW(SummarizeFidelity({}), UsageError);
}

TEST(Fidelity, IsMeasuredOnTheWindowsOfAPerplexity) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<FidelitySequence> windows = WindowsOf(tokens, 3), one = WindowsOf(tokens, 9);
  ASSERT_EQ(windows.size(), size_t{2});
  EXPECT_EQ(windows[1].tokens, (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(windows[1].given, 1);
  ASSERT_EQ(one.size(), size_t{1});
  EXPECT_EQ(one[0].tokens, tokens);
  EXPECT_THROW(WindowsOf(std::span(tokens).first(1), 3), UsageError);
}

}  // namespace
}  // namespace shiftrt
