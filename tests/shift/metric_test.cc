// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/metric.h"

#include <cmath>

#include "engine/gradients.h"
#include "runtime/check.h"
#include "shift/fit/loss_gradients.h"
#include "shift/pipeline.h"
#include "tests/shift/oracles.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

using test::Product;

// Sums of gradients' squares of full rank, whose coordinates differ much in size.
Matrix<double> Squares(int64_t d) {
  Random random(5);
  Matrix<double> squares = Matrix<double>::Zeros(d, d);
  for (int64_t t = 0; t < 4 * d; ++t) {
    std::vector<double> g(d);
    for (int64_t i = 0; i < d; ++i) g[i] = random.Normal() * (i % 3 == 0 ? 5 : 0.3) + (i > 0 ? 0.5 * g[i - 1] : 0);
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = i; j < d; ++j) squares(i, j) += g[i] * g[j];
  }
  return squares;
}

// M as OutputMetric documents it, from its sums.
Matrix<double> Moment(MetricKind kind, const Matrix<double>& squares) {
  const int64_t d = squares.rows();
  double mean = 0;
  for (int64_t i = 0; i < d; ++i) mean += squares(i, i) / static_cast<double>(d);
  Matrix<double> m = Matrix<double>::Zeros(d, d);
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = i; j < d; ++j)
      if (i == j || kind == MetricKind::kFisher) m(i, j) = m(j, i) = squares(i, j) / mean;
    m(i, i) += 1e-3;
  }
  return m;
}

// The sum over centred tokens of e M e', where e = h (A - B).
double ErrorIn(const Matrix<double>& m, const test::Tokens& tokens, const Matrix<double>& a, const Matrix<double>& b) {
  const int64_t n = tokens.h.rows(), d = a.rows();
  std::vector<double> mean(d, 0.0);
  for (int64_t t = 0; t < n; ++t)
    for (int64_t i = 0; i < d; ++i) mean[i] += tokens.h(t, i) / static_cast<double>(n);
  double total = 0;
  for (int64_t t = 0; t < n; ++t) {
    std::vector<double> error(d, 0.0);
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = 0; j < d; ++j) error[j] += (tokens.h(t, i) - mean[i]) * (a(i, j) - b(i, j));
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = 0; j < d; ++j) total += error[i] * m(i, j) * error[j];
  }
  return total;
}

TEST(Metric, ALowRankIsClosestInIt) {
  const test::Tokens tokens = test::MakeTokens(200, false, 3);
  const RidgeSums sums = test::Accumulated(tokens);
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  const Matrix<double> squares = Squares(test::kHidden);
  for (const MetricKind kind : {MetricKind::kFisherDiagonal, MetricKind::kFisher}) {
    SCOPED_TRACE(Name(kind));
    const OutputMetric metric(Context(), kind, squares.view());
    const Matrix<double> moment = Moment(kind, squares);
    for (int64_t rank = 1; rank < test::kHidden; ++rank) {
      const LowRank best = Factorize(Context(), sums, solution, rank, Factorization::kReducedRank, &metric);
      const LowRank plain = Factorize(Context(), sums, solution, rank, Factorization::kReducedRank);
      const double error = ErrorIn(moment, tokens, solution.a.host(), Product(best.p, best.q));
      EXPECT_LT(error, ErrorIn(moment, tokens, solution.a.host(), Product(plain.p, plain.q)) * (1 - 1e-4)) << rank;
      // Eckart and Young: what is left are the squares of the singular values that were dropped.
      double dropped = 0;
      for (int64_t i = rank; i < test::kHidden; ++i) dropped += std::pow(best.singular_values[i], 2);
      EXPECT_NEAR(
          error, dropped,
          1e-6 * ErrorIn(moment, tokens, solution.a.host(), Matrix<double>::Zeros(test::kHidden, test::kHidden)))
          << rank;
    }
    const std::vector<double> all = SingularValues(Context(), sums, solution, Factorization::kReducedRank, &metric);
    const LowRank one = Factorize(Context(), sums, solution, 1, Factorization::kReducedRank, &metric);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(all[i], one.singular_values[i], 1e-6 * all[0]) << i;
  }
}

TEST(Metric, EqualWeightsAreTheIdentity) {
  const test::Tokens tokens = test::MakeTokens(200, false, 4);
  const RidgeSums sums = test::Accumulated(tokens);
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  Matrix<double> squares = Matrix<double>::Zeros(test::kHidden, test::kHidden);
  for (int64_t i = 0; i < test::kHidden; ++i) squares(i, i) = 7e-9;
  for (const MetricKind kind : {MetricKind::kFisherDiagonal, MetricKind::kFisher}) {
    const OutputMetric metric(Context(), kind, squares.view());
    const LowRank with = Factorize(Context(), sums, solution, 3, Factorization::kReducedRank, &metric),
                  without = Factorize(Context(), sums, solution, 3, Factorization::kReducedRank);
    EXPECT_LT(test::RelativeError(Product(with.p, with.q).span(), Product(without.p, without.q).span()), 1e-9);
  }
  EXPECT_THROW(OutputMetric(Context(), MetricKind::kFisher, Matrix<double>::Zeros(4, 4).view()), Error);
  squares(2, 2) = std::nan("");
  EXPECT_THROW(OutputMetric(Context(), MetricKind::kFisher, squares.view()), Error);
}

class MetricOfModel : public test::SmallModel {};

// The loss's gradient along a direction that is added to every token behind a block, by central differences.
TEST_F(MetricOfModel, WeighsDirectionsAsTheLossFeelsThem) {
  GradientEngine engine(context_, model_.weights, model_.plan);
  const Batch& batch = calibration_.fit.front();
  const int64_t tokens = batch.size(), layer = 3;
  Matrix<float> before(tokens, kWidth), gradient(tokens, kWidth);
  engine.Embed(batch, before.view());
  for (size_t stage = 0; stage <= layer; ++stage) engine.Forward(stage, batch, before.view());
  const auto loss_after = [&](int64_t token, int64_t column, float change, MatrixView<float> slope) {
    std::vector<Matrix<float>> streams;
    streams.push_back(before.Clone());
    streams.back()(token, column) += change;
    for (size_t stage = layer + 1; stage < kLayers; ++stage) {
      streams.push_back(streams.back().Clone());
      engine.Forward(stage, batch, streams.back().view());
    }
    const LossSum loss = engine.Head(batch, {}, 1.0, streams.back().view(), slope);
    for (size_t stage = kLayers - 1; stage > layer; --stage)
      engine.Backward(stage, batch, streams[stage - layer - 1].view(), slope);
    return loss.loss;
  };
  loss_after(0, 0, 0, gradient.view());
  Matrix<float> ignored(tokens, kWidth);
  for (const auto& [token, column] : {std::pair(2, 5), std::pair(9, 0), std::pair(30, 11)}) {
    constexpr float kStep = 1e-2f;
    const double slope =
        (loss_after(token, column, kStep, ignored.view()) - loss_after(token, column, -kStep, ignored.view())) /
        (2 * kStep);
    EXPECT_NEAR(gradient(token, column), slope, 1e-3 + 2e-2 * std::abs(slope)) << token << " " << column;
  }

  // The metric that a pass collects is that of these gradients.
  CalibrationSet one;
  one.fit = {batch};
  one.fit_tokens = tokens;
  NoProgress progress;
  const auto metrics =
      CollectMetrics({context_, model_, one, progress}, MetricKind::kFisherDiagonal, std::vector<int64_t>{1, layer});
  ASSERT_EQ(metrics->size(), 2u);
  Matrix<double> squares = Matrix<double>::Zeros(kWidth, kWidth);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < kWidth; ++j) squares(j, j) += static_cast<double>(gradient(t, j)) * gradient(t, j);
  const Matrix<double> expected = Moment(MetricKind::kFisherDiagonal, squares);
  Matrix<double> ones(1, kWidth);
  for (double& x : ones.span()) x = 1;
  const Matrix<double> scales = metrics->at(layer).Times(context_, ones);
  for (int64_t j = 0; j < kWidth; ++j) EXPECT_NEAR(scales(0, j), std::sqrt(expected(j, j)), 1e-4 * scales(0, j)) << j;
}

// Token weights by gradients are the squares of the same gradients, on whatever part of the text; and a fit reads them.
TEST_F(MetricOfModel, TokenWeightsAreTheSquaresOfTheGradients) {
  NoProgress progress;
  const ShiftJob job = {context_, model_, calibration_, progress};
  const std::vector<int64_t> layers = {3, 1};
  const auto sizes = CollectGradientSizes(job, layers);
  double total = 0, squares = 0, tokens = 0;
  int64_t number = 0;
  VisitLossGradients(
      job, calibration_.fit, std::vector<int64_t>{3}, [&](int64_t, const Batch& batch, const Matrix<float>& g) {
        const auto felt = sizes.fit.Of(3, number++);
        ASSERT_EQ(std::ssize(felt), batch.size());
        double of_batch = 0, weights = 0;
        for (int64_t t = 0; t < g.rows(); ++t) {
          weights += felt[t] - 1e-3;
          for (const float x : std::span(g.row(t), g.cols())) of_batch += static_cast<double>(x) * x;
        }
        squares += of_batch * static_cast<double>(batch.size() * batch.size());
        total += weights;
        tokens += static_cast<double>(batch.size());
        EXPECT_NEAR(weights / total, of_batch * static_cast<double>(batch.size() * batch.size()) / squares, 1e-3);
      });
  EXPECT_GT(total, 0.2 * tokens);
  for (int64_t b = 0; b < std::ssize(calibration_.heldout); ++b)
    EXPECT_EQ(std::ssize(sizes.heldout.Of(1, b)), calibration_.heldout[b].size());

  ShiftOptions options;
  options.prune = ParsePrune("layers=2");
  options.fit.rank = RankSpec::Full();
  const ShiftResult plain = Shift(job, options);
  options.weighting = ParseTokenWeighting("gradient");
  const ShiftResult felt = Shift(job, options);
  EXPECT_NE(plain.corrected.Fingerprint(), felt.corrected.Fingerprint());
  options.mode = Calibration::kDrift;
  EXPECT_EQ(Shift(job, options).sites.size(), 1u);
  for (const char* correction : {"refit", "joint", "replaceme"}) {
    options.mode = Calibration::kIndependent;
    options.correction = &FindCorrection(correction);
    EXPECT_THROW(CheckOptions(options, model_.weights->config), UsageError) << correction;
  }
}

TEST_F(MetricOfModel, IsRefusedWhereNothingReadsIt) {
  NoProgress progress;
  ShiftOptions options;
  options.prune = ParsePrune("layers=2");
  options.fit.rank = RankSpec::Fixed(4);
  options.fit.metric = MetricKind::kFisher;
  const ShiftResult with = Shift({context_, model_, calibration_, progress}, options);
  options.fit.metric = MetricKind::kIdentity;
  const ShiftResult without = Shift({context_, model_, calibration_, progress}, options);
  EXPECT_LT(with.sites[0].r2_fit, without.sites[0].r2_fit) << "the metric gives up squares for what the loss feels";
  options.fit.metric = MetricKind::kFisher;
  options.correction = &FindCorrection("refit");
  EXPECT_THROW(CheckOptions(options, model_.weights->config), UsageError);
  options.correction = &FindCorrection("lra");
  options.fit.rank = RankSpec::Full();
  EXPECT_THROW(CheckOptions(options, model_.weights->config), UsageError);
}

}  // namespace
}  // namespace shiftrt
