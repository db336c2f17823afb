// SPDX-License-Identifier: Apache-2.0
#include "kernels/logprob.h"

#include <algorithm>

#include "tests/kernels/oracle.h"
#include "tests/kernels/score_cases.h"

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
    logits[v] = logit.value;
    error = std::max(error, test::SumTolerance(hidden, logit.size) + 6e-7 * soft_cap);
  }
  const std::vector<double> expected = test::LogSoftmax(logits, soft_cap);
  ASSERT_NEAR(log_prob, expected[target], 2 * error + 1e-6 + 2 * test::kUnit * std::abs(expected[target]))
      << "row " << t;
  ASSERT_TRUE(argmax >= 0 && argmax < vocab);
  ASSERT_GE(expected[argmax], *std::max_element(expected.begin(), expected.end()) - 2 * error) << "row " << t;
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

// Every input selects one column of the head, so that the logits are exactly those of the case.
TEST_P(TokenLogProbsTest, ScoresOfGivenLogitsAgreeWithFloat64) {
  for (const test::ScoreCase& c : test::ScoreCases()) {
    const Stored head(DType::kFloat32, {c.vocab, c.tokens()}, test::Transposed(c.logits, c.tokens(), c.vocab));
    std::vector<double> chosen(c.tokens() * c.tokens());
    for (int64_t t = 0; t < c.tokens(); ++t) chosen[t * c.tokens() + t] = 1;
    const Padded x = Padded::Of(c.tokens(), c.tokens(), chosen);
    const Scores scores = Score(context_, x, head.view, c.targets);
    for (int64_t t = 0; t < c.tokens(); ++t) c.Expect(t, scores.log_probs[t], scores.argmax[t]);
  }
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

struct HeadCase {
  int64_t rows, hidden, vocab;
  test::LossTerms terms = {};
  DType dtype = DType::kFloat32;
};

// Inputs of a loss, its gradients in float64, and the sums of the absolute values of their terms.
struct LossProblem {
  explicit LossProblem(const HeadCase& c)
      : c(c),
        x(Padded::Normal(c.rows, c.hidden, 1)),
        taught(Padded::Normal(c.rows, c.hidden + 3, 2)),
        w(Stored::Normal(c.dtype, {c.vocab, c.hidden}, 3)),
        teacher_w(Stored::Normal(DType::kFloat16, {c.vocab, c.hidden + 3}, 4)),
        targets(Targets(c.rows, c.vocab)) {
    Random random(5);
    for (int64_t t = 0; t < c.rows; ++t) scales.push_back(static_cast<float>(t % 3 == 1 ? 0 : random.Uniform() + 0.1));
  }

  // The logits of row t before the soft cap, with one element of x moved.
  static std::vector<double> Logits(const Padded& x, const Stored& w, int64_t t, int64_t moved = -1, double by = 0) {
    std::vector<double> logits(w.view.rows());
    for (int64_t v = 0; v < w.view.rows(); ++v)
      for (int64_t k = 0; k < x.cols(); ++k)
        logits[v] += (x(t, k) + (k == moved ? by : 0)) * w.values[v * x.cols() + k];
    return logits;
  }
  test::TokenLoss Loss(int64_t t, const std::vector<double>& teacher, int64_t moved = -1, double by = 0) const {
    return test::LossOf(c.terms, Logits(x, w, t, moved, by), teacher, targets[t]);
  }

  struct Found {
    std::vector<float> losses;
    Padded dx, dw;
  };
  Found Compute(const Context& context, const Padded* before) const {
    Found found{{}, Padded(c.rows, c.hidden), before == nullptr ? Padded(0, c.hidden) : before->Copy()};
    found.losses = Losses(context, found.dx.view(), before == nullptr ? MatrixView<float>() : found.dw.view());
    return found;
  }
  std::vector<float> Losses(const Context& context, MatrixView<float> dx, MatrixView<float> dw) const {
    const OutputHead head(w.view, c.terms.soft_cap), teacher(teacher_w.view, c.terms.teacher_cap);
    HeadLoss loss{head, targets, c.terms.cross_entropy, c.terms.divergence};
    if (c.terms.divergence != 0) loss.teacher = taught.view(), loss.teacher_head = &teacher;
    std::vector<float> losses(c.rows, test::kNan);
    HeadLossGradient(context, x.view(), loss, scales, losses, dx, dw);
    return losses;
  }

  HeadCase c;
  Padded x, taught;
  Stored w, teacher_w;
  std::vector<int32_t> targets;
  std::vector<float> scales;
};

TEST_P(TokenLogProbsTest, LossAndGradientAgreeWithFloat64) {
  for (const HeadCase& c : {HeadCase{1, 5, 7},
                            {6, 33, 2049, {}, DType::kBFloat16},
                            {9, 16, 4100, {.soft_cap = 8}, DType::kFloat16},
                            {5, 16, 300, {.cross_entropy = 0, .divergence = 1}},
                            {7, 12, 2100, {0.5f, 2, 6, 9}, DType::kBFloat16}}) {
    SCOPED_TRACE(fmt::format("{} rows, vocabulary {}, cap {}, divergence {}", c.rows, c.vocab, c.terms.soft_cap,
                             c.terms.divergence));
    const LossProblem problem(c);
    const Padded before = Padded::Normal(c.vocab, c.hidden, 6, 0.1);
    const LossProblem::Found found = problem.Compute(context_, &before);
    std::vector<Exact> dw(c.vocab * c.hidden);
    double most = 0;  // errors are absolute: those of logits of up to tens, and of their products with x and W
    for (const double value : problem.w.values) most = std::max(most, std::abs(value));
    for (int64_t t = 0; t < c.rows; ++t) {
      const std::vector<double> teacher = LossProblem::Logits(problem.taught, problem.teacher_w, t);
      const test::TokenLoss exact = problem.Loss(t, teacher);
      ASSERT_NEAR(found.losses[t], exact.loss.value, 1e-5 * (10 + exact.loss.size));
      std::vector<Exact> dx(c.hidden);
      for (int64_t v = 0; v < c.vocab; ++v) {
        for (int64_t k = 0; k < c.hidden; ++k) {
          dx[k].Add(exact.gradient[v].value * problem.w.values[v * c.hidden + k]);
          dw[v * c.hidden + k].Add(problem.scales[t] * exact.gradient[v].value * problem.x(t, k));
        }
      }
      for (int64_t k = 0; k < c.hidden; ++k) {
        const double step = 1e-5, above = problem.Loss(t, teacher, k, step).loss.value,
                     below = problem.Loss(t, teacher, k, -step).loss.value;
        ASSERT_NEAR(dx[k].value, (above - below) / (2 * step), 1e-7 * (1 + dx[k].size));
        const double tolerance =
            2e-5 * static_cast<double>(c.terms.cross_entropy + c.terms.divergence) * most * problem.scales[t];
        ASSERT_NEAR(found.dx(t, k), problem.scales[t] * dx[k].value, tolerance) << t << " " << k;
      }
    }
    for (int64_t v = 0; v < c.vocab; ++v)
      for (int64_t k = 0; k < c.hidden; ++k)
        ASSERT_NEAR(found.dw(v, k), before(v, k) + dw[v * c.hidden + k].value,
                    2e-5 * dw[v * c.hidden + k].size + 4e-7 * std::abs(before(v, k)) + 2e-6)
            << v << " " << k;
    EXPECT_TRUE(found.dx.PaddingIsUntouched() && found.dw.PaddingIsUntouched());
    const LossProblem::Found threaded = problem.Compute(On(3), &before), alone = problem.Compute(context_, nullptr);
    EXPECT_EQ(found.losses, threaded.losses);
    EXPECT_TRUE(test::Identical(found.dx, threaded.dx) && test::Identical(found.dw, threaded.dw));
    EXPECT_EQ(found.losses, alone.losses);
    EXPECT_TRUE(test::Identical(found.dx, alone.dx));
    EXPECT_EQ(found.losses, problem.Losses(context_, {}, {}));
  }
}

// Every input selects one column of the head, so that the logits are exactly those of the case, and the gradient of the
// head is that of the logits.
TEST_P(TokenLogProbsTest, LossesAndGradientsOfGivenLogitsAgreeWithFloat64) {
  constexpr int64_t kTokens = test::LossCase::kTokens;
  const Padded x = Padded::Of(kTokens, kTokens, {1, 0, 0, 0, 1, 0, 0, 0, 1});
  for (const test::LossCase& c : test::LossCases()) {
    const auto stored = [&](const std::vector<double>& logits) {
      return Stored(DType::kFloat32, {c.vocab, kTokens}, test::Transposed(logits, kTokens, c.vocab));
    };
    const Stored w = stored(c.logits), teacher_w = stored(c.taught() ? c.teacher : c.logits);
    const OutputHead head(w.view, c.terms.soft_cap), teacher(teacher_w.view, c.terms.teacher_cap);
    HeadLoss loss{head, c.targets, c.terms.cross_entropy, c.terms.divergence};
    if (c.taught()) loss.teacher = x.view(), loss.teacher_head = &teacher;
    const Padded dx(kTokens, kTokens), dw = Padded::Of(c.vocab, kTokens, std::vector<double>(c.vocab * kTokens));
    std::vector<float> losses(kTokens, -1.0f);
    HeadLossGradient(context_, x.view(), loss, std::vector<float>(c.scales.begin(), c.scales.end()), losses, dx.view(),
                     dw.view());
    c.Expect({losses.begin(), losses.end()}, test::Transposed(dw.Values(), c.vocab, kTokens), DType::kFloat32,
             2 * std::exp(-87.3));  // exponentials below this are 0, and scales are at most 2
  }
}

// A divergence from itself is 0, and so is its gradient, up to the roundings.
TEST_P(TokenLogProbsTest, NoDivergenceFromItself) {
  const Padded x = Padded::Normal(7, 16, 1), dx(7, 16);
  const Stored w = Stored::Normal(DType::kBFloat16, {2100, 16}, 2);
  const OutputHead head(w.view);
  const std::vector<int32_t> targets = Targets(7, 2100);
  std::vector<float> losses(7);
  HeadLossGradient(context_, x.view(), {head, targets, 0, 1, x.view(), &head}, std::vector<float>(7, 1.0f), losses,
                   dx.view());
  for (int64_t t = 0; t < 7; ++t) {
    EXPECT_EQ(losses[t], 0);
    for (int64_t k = 0; k < 16; ++k) EXPECT_EQ(dx(t, k), 0);
  }
}

// A batch of more rows than are processed at a time, of which a large vocabulary allows fewer, has the losses and
// gradients of its rows.
TEST_P(TokenLogProbsTest, GradientOfManyRows) {
  struct Case {
    int64_t rows, vocab, from;
  };
  for (const auto& [rows, vocab, from] : {Case{1030, 40, 1024}, {110, 300'000, 90}}) {
    const LossProblem problem({rows, 7, vocab});
    const LossProblem::Found found = problem.Compute(context_, nullptr);
    std::vector<float> log_probs(rows);
    TokenLogProbs(context_, problem.x.view(), problem.w.view, problem.targets, log_probs, {});
    for (int64_t t = 0; t < rows; ++t) ASSERT_NEAR(found.losses[t], -log_probs[t], 2e-6);
    const OutputHead head(problem.w.view);
    const Padded dx(6, 7);
    std::vector<float> losses(6);
    HeadLossGradient(context_, problem.x.view().Rows(from, 6), {head, std::span(problem.targets).subspan(from, 6)},
                     std::span(problem.scales).subspan(from, 6), losses, dx.view());
    for (int64_t t = 0; t < 6; ++t) {
      EXPECT_EQ(losses[t], found.losses[from + t]);
      for (int64_t k = 0; k < 7; ++k) ASSERT_EQ(dx(t, k), found.dx(from + t, k));
    }
  }
}

TEST_P(TokenLogProbsTest, GradientRefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 4, 1), dx(2, 4), dw(7, 4);
  const Stored w = Stored::Normal(DType::kFloat32, {7, 4}, 2), other = Stored::Normal(DType::kFloat32, {8, 4}, 2);
  const OutputHead head(w.view), teacher(other.view);
  const std::vector<int32_t> good = {0, 6}, bad = {0, 7};
  const std::vector<float> scales(2, 1.0f);
  std::vector<float> losses(2), one(1);
  const auto compute = [&](const HeadLoss& loss, std::span<float> into, MatrixView<float> gradient) {
    HeadLossGradient(context_, x.view(), loss, scales, into, dx.view(), gradient);
  };
  EXPECT_THROW(compute({head, bad}, losses, {}), Error);
  EXPECT_THROW(compute({head, good}, one, {}), Error);
  EXPECT_THROW(compute({head, good}, losses, dw.view().Rows(0, 6)), Error);
  EXPECT_THROW(compute({head, good, 1, 1}, losses, {}), Error);
  EXPECT_THROW(compute({head, good, 1, 1, x.view(), &teacher}, losses, {}), Error);
  EXPECT_THROW(compute({head, good, 1, 1, x.view().Rows(0, 1), &head}, losses, {}), Error);
}

}  // namespace
}  // namespace shiftrt
