// SPDX-License-Identifier: Apache-2.0
#include "kernels/logprob.h"

#include <algorithm>

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;
using test::Stored;

class TokenLogProbsTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(TokenLogProbsTest);

struct Scores {
  std::vector<float> log_probs;
  std::vector<int32_t> argmax;
};

Scores Score(const Context& context, const Padded& x, const OutputHead& head, const std::vector<int32_t>& targets) {
  Scores scores{std::vector<float>(targets.size(), test::kNan), std::vector<int32_t>(targets.size(), -1)};
  TokenLogProbs(context, x.view(), head, targets, scores.log_probs, scores.argmax);
  return scores;
}

std::vector<int32_t> Targets(int64_t count, int64_t vocab) {
  Random random(9);
  std::vector<int32_t> targets(count);
  for (int32_t& target : targets) target = static_cast<int32_t>(random.Below(vocab));
  targets.front() = 0;
  targets.back() = static_cast<int32_t>(vocab - 1);
  return targets;
}

// A logit has the error of a sum. It affects the result twice: through the target and through the log-sum-exp. A soft
// cap does not increase that error, but adds the error of its own arithmetic.
void ExpectScore(const Padded& x, int64_t t, const Stored& w, int32_t target, float log_prob, int32_t argmax,
                 double soft_cap = 0) {
  const int64_t hidden = x.cols(), vocab = w.view.rows();
  std::vector<double> logits(vocab);
  double error = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    Exact logit;
    for (int64_t k = 0; k < hidden; ++k) logit.Add(static_cast<double>(x(t, k)) * w.values[v * hidden + k]);
    logits[v] = soft_cap > 0 ? soft_cap * std::tanh(logit.value / soft_cap) : logit.value;
    error = std::max(error, test::SumTolerance(hidden, logit.size) + 6e-7 * soft_cap);
  }
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - most);
  const double expected = logits[target] - most - std::log(sum);
  ASSERT_NEAR(log_prob, expected, 2 * error + 1e-6 + 2 * test::kUnit * std::abs(expected)) << "row " << t;
  ASSERT_TRUE(argmax >= 0 && argmax < vocab);
  ASSERT_GE(logits[argmax], most - 2 * error) << "row " << t;
}

TEST_P(TokenLogProbsTest, AgreesWithFloat64) {
  for (const int64_t vocab : {1, 2, 2047, 2048, 2049, 5003}) {
    for (const int64_t rows : {1, 5, 17}) {
      for (const double size : {1.0, 300.0}) {  // logits of up to tens and up to thousands
        SCOPED_TRACE(fmt::format("vocab {} rows {} size {}", vocab, rows, size));
        const int64_t hidden = 33;
        const Padded x = Padded::Normal(rows, hidden, 1, size);
        const Stored w = Stored::Normal(test::kStoredTypes[vocab % 3], {vocab, hidden}, 2);
        const std::vector<int32_t> targets = Targets(rows, vocab);
        const Scores scores = Score(context_, x, w.view, targets);
        for (int64_t t = 0; t < rows; ++t) ExpectScore(x, t, w, targets[t], scores.log_probs[t], scores.argmax[t]);
        if (HasFatalFailure()) return;
        const Scores threaded = Score(On(3), x, w.view, targets);
        EXPECT_EQ(threaded.log_probs, scores.log_probs);
        EXPECT_EQ(threaded.argmax, scores.argmax);
      }
    }
  }
}

TEST_P(TokenLogProbsTest, ASoftCapBoundsTheLogits) {
  const int64_t rows = 5, hidden = 33, vocab = 2100;
  for (const double size : {1.0, 30.0}) {
    const Padded x = Padded::Normal(rows, hidden, 1, size);
    const Stored w = Stored::Normal(DType::kBFloat16, {vocab, hidden}, 2);
    const std::vector<int32_t> targets = Targets(rows, vocab);
    const Scores scores = Score(context_, x, {w.view, 20}, targets);
    for (int64_t t = 0; t < rows; ++t) ExpectScore(x, t, w, targets[t], scores.log_probs[t], scores.argmax[t], 20);
  }
}

TEST_P(TokenLogProbsTest, MoreRowsThanABlock) {
  const int64_t rows = 1030, vocab = 40, hidden = 7;
  const Padded x = Padded::Normal(rows, hidden, 1);
  const Stored w = Stored::Normal(DType::kFloat32, {vocab, hidden}, 2);
  const std::vector<int32_t> targets = Targets(rows, vocab);
  const Scores scores = Score(context_, x, w.view, targets);
  for (int64_t t = 0; t < rows; ++t) ExpectScore(x, t, w, targets[t], scores.log_probs[t], scores.argmax[t]);
  std::vector<float> alone(rows, test::kNan);
  TokenLogProbs(context_, x.view(), w.view, targets, alone, {});
  EXPECT_EQ(alone, scores.log_probs);
}

// Integer logits make ties exact. Within a block and between blocks, the lowest id must win.
TEST_P(TokenLogProbsTest, TheLowestIdWinsATie) {
  const int64_t vocab = 5000;
  for (const std::vector<int64_t>& best : {std::vector<int64_t>{17, 18, 1999}, {2047, 2048}, {3, 4999}, {4998, 4999}}) {
    std::vector<double> values(vocab, -1);
    for (const int64_t id : best) values[id] = 2;
    const Stored w(DType::kFloat32, {vocab, 1}, values);
    const Padded x(1, 1);
    x(0, 0) = 3;
    EXPECT_EQ(Score(context_, x, w.view, {0}).argmax[0], best[0]);
  }
}

TEST_P(TokenLogProbsTest, HugeLogitsNeitherOverflowNorVanish) {
  const int64_t vocab = 4100;
  std::vector<double> values(vocab, -1);
  values[4000] = 1;
  const Stored w(DType::kFloat32, {vocab, 1}, values);
  const Padded x(2, 1);
  x(0, 0) = 1e30f;
  x(1, 0) = -1e30f;
  const Scores scores = Score(context_, x, w.view, {4000, 0});
  EXPECT_EQ(scores.log_probs[0], 0);
  EXPECT_NEAR(scores.log_probs[1], -std::log(4099.0), 1e-5);
  EXPECT_EQ(scores.argmax, (std::vector<int32_t>{4000, 0}));
  EXPECT_NEAR(Score(context_, x, w.view, {0, 4000}).log_probs[0], -2e30, 1e24);
}

TEST_P(TokenLogProbsTest, RefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 4, 1);
  const Stored w = Stored::Normal(DType::kFloat32, {7, 4}, 2);
  for (const int32_t target : {-1, 7, std::numeric_limits<int32_t>::max()})
    EXPECT_THROW(Score(context_, x, w.view, {0, target}), Error);
  EXPECT_THROW(Score(context_, x, w.view, {0}), Error);
  std::vector<float> two(2), one(1);
  std::vector<int32_t> argmax(1);
  EXPECT_THROW(TokenLogProbs(context_, x.view(), w.view, std::vector<int32_t>{0, 1}, one, {}), Error);
  EXPECT_THROW(TokenLogProbs(context_, x.view(), w.view, std::vector<int32_t>{0, 1}, two, argmax), Error);
}

TEST_P(TokenLogProbsTest, KeepsNotANumber) {
  for (const int64_t at : {0, 5, 2100}) {
    std::vector<double> values(4100, 0.5);
    values[at] = test::kNan;
    const Stored w(DType::kFloat32, {4100, 1}, values);
    const Padded x(1, 1);
    x(0, 0) = 1;
    EXPECT_TRUE(std::isnan(Score(context_, x, w.view, {7}).log_probs[0])) << at;
  }
}

}  // namespace
}  // namespace shiftrt
