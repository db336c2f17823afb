// SPDX-License-Identifier: Apache-2.0
// Every correction against sums, solves and streams worked out by hand.
#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "runtime/check.h"
#include "shift/pipeline.h"
#include "shift/refit/fold.h"
#include "shift/sums/collect.h"
#include "tests/engine/rows.h"
#include "tests/models/fixtures.h"
#include "tests/shift/oracles.h"
#include "tests/shift/small_fits.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

using test::AffineMap;
using test::Copied;
using test::Doubles;
using test::LeastSquares;
using test::Minus;
using test::Normed;
using test::Product;
using test::RelativeError;
using test::WeightedRidge;

void ExpectMap(const Lra& lra, const AffineMap& map, double tolerance) {
  EXPECT_LT(RelativeError(DenseMap(Context(), lra).span(), map.a.span()), tolerance);
  EXPECT_LT(RelativeError(Doubles(lra.b.span()), map.b.span()), tolerance);
}

TEST(TokenWeights, ReadsAndWrites) {
  EXPECT_TRUE(ParseTokenWeights("none").uniform());
  for (const char* text : {"norm", "norm,first:0", "first:0.5,massive:0", "massive:2"})
    EXPECT_EQ(Format(ParseTokenWeights(text)), text);
  for (const char* text : {"", "norms", "norm,", ",norm", "none,norm", "first", "first:", "first:-1", "massive:nan"})
    EXPECT_THROW(ParseTokenWeights(text), UsageError) << text;
}

TEST(TokenWeights, WeighsBySizePlaceAndMassiveActivations) {
  Matrix<float> h = Matrix<float>::Zeros(4, 5), delta = Matrix<float>::Zeros(4, 5);
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t j = 0; j < 5; ++j) {
      h(t, j) = static_cast<float>(t + j + 1);
      delta(t, j) = 1;
    }
  h(1, 2) = -6000;                                         // before the block
  delta(2, 4) = 1e6f;                                      // after it
  for (int64_t j = 0; j < 5; ++j) delta(3, j) = -h(3, j);  // nothing left
  Batch batch;
  batch.Add(std::vector<int32_t>{1, 2, 3});
  batch.Add(std::vector<int32_t>{4});
  std::vector<RowProducts> products(4);
  ComputeRowProducts(Context(), h.view(), delta.view(), products);
  EXPECT_TRUE(WeightsOfRows({}, products, h.view(), delta.view(), batch).empty());
  const std::vector<double> places =
      WeightsOfRows(ParseTokenWeights("first:0.5,massive:0.25"), products, h.view(), delta.view(), batch);
  EXPECT_EQ(places, (std::vector<double>{0.5, 0.25, 0.25, 0.5}));
  const std::vector<double> norms = WeightsOfRows(ParseTokenWeights("norm"), products, h.view(), delta.view(), batch);
  EXPECT_DOUBLE_EQ(norms[0], 5.0 / (4 + 9 + 16 + 25 + 36));
  EXPECT_DOUBLE_EQ(norms[1], 5.0 / (9 + 16 + 5999.0 * 5999.0 + 36 + 49));
  EXPECT_EQ(norms[3], 0.0);
}

TEST(WeightedSums, AreTheFitOfRowsThatCountForThatMuch) {
  const test::Tokens tokens = test::MakeTokens(120, true, 21);
  Random random(22);
  std::vector<double> weights(120);
  for (double& weight : weights) weight = random.Uniform() < 0.2 ? 0.0 : 3 * random.Uniform();
  RidgeSums sums(test::kHidden);
  sums.Add(Context(), tokens.h.view(), tokens.delta.view(), weights);
  EXPECT_EQ(sums.tokens(), std::count_if(weights.begin(), weights.end(), [](double w) { return w > 0; }));
  EXPECT_NEAR(sums.weight(), std::accumulate(weights.begin(), weights.end(), 0.0), 1e-10);
  const RidgeSolution solution = SolveRidge(Context(), sums, {{LambdaSpec::Kind::kAbsolute, 0.5}, false});
  const AffineMap expected = WeightedRidge(tokens.h, tokens.delta, weights, 0.5);
  EXPECT_LT(RelativeError(solution.a.host().span(), expected.a.span()), 1e-8);
  EXPECT_LT(RelativeError(solution.b.span(), expected.b.span()), 1e-8);
  // A weight of two is the row twice.
  RidgeSums twice(test::kHidden), doubled(test::kHidden);
  twice.Add(Context(), tokens.h.view(), tokens.delta.view());
  twice.Add(Context(), tokens.h.view().Rows(0, 7), tokens.delta.view().Rows(0, 7));
  std::vector<double> twos(120, 1.0);
  std::fill_n(twos.begin(), 7, 2.0);
  doubled.Add(Context(), tokens.h.view(), tokens.delta.view(), twos);
  const auto found = test::Centered(doubled), same = test::Centered(twice);
  EXPECT_LT(RelativeError(found.cross.span(), same.cross.span()), 1e-12);
  EXPECT_LT(RelativeError(found.gram.span(), same.gram.span()), 1e-12);
  EXPECT_NEAR(doubled.CenteredDeltaSquares(), twice.CenteredDeltaSquares(), 1e-10 * twice.CenteredDeltaSquares());
}

TEST(WeightedSums, RefuseBadWeights) {
  const test::Tokens tokens = test::MakeTokens(3, false, 1);
  RidgeSums sums(test::kHidden);
  const auto add = [&](std::vector<double> weights) {
    sums.Add(Context(), tokens.h.view(), tokens.delta.view(), weights);
  };
  EXPECT_THROW(add({1, 1}), Error);
  EXPECT_THROW(add({1, -1, 1}), Error);
  EXPECT_THROW(add({1, std::nan(""), 1}), Error);
  add({0, 0, 0});
  EXPECT_THROW(SolveRidge(Context(), sums, {}), Error);
}

TEST(RidgeSums, OntoOutputsAndWithoutMeansAreThoseOfOtherTokens) {
  const test::Tokens tokens = test::MakeTokens(60, true, 23);
  test::Tokens outputs{tokens.h.Clone(), tokens.h.Clone()},
      mirrored{Matrix<float>(120, test::kHidden), Matrix<float>(120, test::kHidden)};
  for (int64_t i = 0; i < tokens.h.size(); ++i) outputs.delta.data()[i] += tokens.delta.data()[i];
  for (int64_t i = 0; i < tokens.h.size(); ++i) {
    mirrored.h.data()[i] = tokens.h.data()[i];
    mirrored.delta.data()[i] = tokens.delta.data()[i];
    mirrored.h.data()[tokens.h.size() + i] = -tokens.h.data()[i];
    mirrored.delta.data()[tokens.h.size() + i] = -tokens.delta.data()[i];
  }
  const RidgeSums sums = test::Accumulated(tokens), onto = sums.OntoOutputs(),
                  onto_expected = test::Accumulated(outputs), bare = sums.WithoutMeans(),
                  twice = test::Accumulated(mirrored);
  EXPECT_LT(RelativeError(onto.Cross().span(), onto_expected.Cross().span()), 1e-6);  // the outputs are float32
  EXPECT_NEAR(onto.DeltaSquares(), onto_expected.DeltaSquares(), 1e-6 * onto.DeltaSquares());
  const Matrix<double> gram = test::Centered(bare).gram, expected = test::Centered(twice).gram;
  for (int64_t i = 0; i < gram.size(); ++i)
    EXPECT_NEAR(2 * gram.data()[i], expected.data()[i], 1e-9 * std::abs(expected.data()[i]) + 1e-9);
  EXPECT_NEAR(2 * bare.CenteredDeltaSquares(), twice.CenteredDeltaSquares(), 1e-9 * twice.CenteredDeltaSquares());
}

// For affine blocks the map over both is the product of the maps over each, and least squares finds all three.
TEST(Span, IsTheMergedPairWhenBlocksAreAffine) {
  constexpr int64_t kRows = 200, d = test::kHidden;
  const test::Tokens tokens = test::MakeTokens(kRows, false, 31);
  Random random(32);
  const auto matrix = [&](int64_t rows) {
    Matrix<double> m(rows, d);
    for (double& x : m.span()) x = 0.6 * (random.Uniform() - 0.5);
    return m;
  };
  const Matrix<double> a1 = matrix(d), b1 = matrix(1), a2 = matrix(d), b2 = matrix(1);
  const auto update = [&](const Matrix<float>& h, const Matrix<double>& a, const Matrix<double>& b) {
    Matrix<float> out(kRows, d);
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t j = 0; j < d; ++j) {
        double sum = b(0, j);
        for (int64_t k = 0; k < d; ++k) sum += h(t, k) * a(k, j);
        out(t, j) = static_cast<float>(sum);
      }
    return out;
  };
  const Matrix<float>& h = tokens.h;
  const Matrix<float> first = update(h, a1, b1);
  Matrix<float> middle = h.Clone();
  for (int64_t i = 0; i < h.size(); ++i) middle.data()[i] += first.data()[i];
  const Matrix<float> second = update(middle, a2, b2);
  Matrix<float> both = first.Clone();
  for (int64_t i = 0; i < h.size(); ++i) both.data()[i] += second.data()[i];
  const auto fitted = [&](const Matrix<float>& in, const Matrix<float>& out, const Site& site) {
    SiteSums sums(site, d);
    sums.fit.Add(Context(), in.view(), out.view());
    FitOptions options;
    options.rank = RankSpec::Full();
    options.ridge.lambda = ParseLambda("1e-9rel");
    NoProgress progress;
    return FitSites(Context(), {&sums}, options, progress).adapters[0];
  };
  const std::vector<Site> sites = {{1, 1}, {2, 1}};
  const std::vector<std::shared_ptr<const Lra>> adapters = {fitted(h, first, sites[0]),
                                                            fitted(middle, second, sites[1])};
  const DepthPlan merged = MergeAdapters(CorrectedPlan(4, sites, adapters), Merge::kFull, Context());
  const auto span = fitted(h, both, {1, 2});
  ASSERT_EQ(merged.stages.size(), 3u);
  const auto& stage = merged.stages[1].adapter();
  EXPECT_EQ(stage.parts, (std::vector<BlockPart>{1, 2}));
  EXPECT_LT(RelativeError(Doubles(span->a.span()), Doubles(stage.lra->a.span())), 1e-4);
  EXPECT_LT(RelativeError(Doubles(span->b.span()), Doubles(stage.lra->b.span())), 1e-4);
}

TEST(Sites, RunsAreNeighbours) {
  const std::vector<Site> runs = RunsOf({1, 2, 3, 5, 7, 8});
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].Name(), "1-3");
  EXPECT_EQ(runs[1].Name(), "5");
  EXPECT_EQ(runs[2].Layers(), (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(SitesOf({1, 2}).size(), 2u);
  EXPECT_THROW(CorrectedPlan(8, runs, std::vector<std::shared_ptr<const Lra>>(3)), Error);
  EXPECT_EQ(CorrectedPlan(9, runs, std::vector<std::shared_ptr<const Lra>>(3)).KeptLayers(),
            (std::vector<int64_t>{0, 4, 6}));
}

class CorrectionFits : public test::SmallFits {
 protected:
  static Recipe Options(const std::string& prune) { return SmallFits::Options("lra", prune); }
  Matrix<float> Stream(const DepthPlan& plan, int64_t layer) { return Seen(plan, layer, TapPoint::kInput); }
  static std::vector<double> Ones() { return std::vector<double>(28 * 32, 1.0); }
  static const Lra& AdapterOf(const DepthPlan& plan, size_t stage) { return *plan.stages[stage].adapter().lra; }
};

TEST_F(CorrectionFits, SequentialReadsTheCorrectedStreamAndAimsAtTheBlocksOwnUpdateThere) {
  Recipe options = Options("layers=1,2,4");
  const ShiftResult independent = Run(options);
  options.mode = Calibration::kSequential;
  const ShiftResult result = Run(options);
  const auto a = AdapterOf(result.corrected, 1).a.span(), b = AdapterOf(independent.corrected, 1).a.span();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin())) << "nothing was removed before the first site";
  // Each site's plan has the adapters before it in place and its own block running.
  std::vector<Site> before;
  std::vector<std::shared_ptr<const Lra>> adapters;
  for (const auto& [layer, stage] : {std::pair(1, 1), std::pair(2, 2), std::pair(4, 4)}) {
    const DepthPlan plan = CorrectedPlan(kLayers, before, adapters);
    const AffineMap expected =
        WeightedRidge(Stream(plan, layer), Seen(plan, layer, TapPoint::kUpdate), Ones(), kLambda);
    ExpectMap(AdapterOf(result.corrected, stage), expected, 2e-5);
    before.push_back({layer, 1});
    adapters.push_back(result.corrected.stages[stage].adapter().lra);
  }
  EXPECT_GT(RelativeError(Doubles(AdapterOf(result.corrected, 4).a.span()),
                          Doubles(AdapterOf(independent.corrected, 4).a.span())),
            1e-2);
}

TEST_F(CorrectionFits, DriftAimsAtTheOriginalStream) {
  Recipe options = Options("layers=1,4");
  const ShiftResult independent = Run(options);
  options.mode = Calibration::kDrift;
  const ShiftResult result = Run(options);
  // Where nothing was removed before, the independent fit, up to rounding in the difference of two streams.
  EXPECT_LT(RelativeError(Doubles(AdapterOf(result.corrected, 1).a.span()),
                          Doubles(AdapterOf(independent.corrected, 1).a.span())),
            1e-4);
  const std::vector<Site> before = {{1, 1}};
  const std::vector<std::shared_ptr<const Lra>> adapters = {result.corrected.stages[1].adapter().lra};
  const Matrix<float> input = Stream(CorrectedPlan(kLayers, before, adapters), 4);
  const Matrix<float> target = Minus(Stream(model_.plan, 5), input);
  ExpectMap(AdapterOf(result.corrected, 4), WeightedRidge(input, target, Ones(), kLambda), 2e-5);
  for (const FitReport& site : result.sites) EXPECT_EQ(site.tokens, 28 * 32);
}

TEST_F(CorrectionFits, NormLraReadsTheNormedStream) {
  Recipe options = Options("layers=1,3,4");
  options.correction = "norm-lra";
  options.span = true;
  for (const Calibration mode : {Calibration::kIndependent, Calibration::kSequential, Calibration::kDrift}) {
    options.mode = mode;
    const ShiftResult result = Run(options);
    DepthPlan before = model_.plan;
    if (mode != Calibration::kIndependent)
      before = CorrectedPlan(kLayers, std::vector<Site>{{1, 1}}, std::vector{result.corrected.stages[1].adapter().lra});
    const Matrix<float> input = Stream(before, 3), end = Stream(mode == Calibration::kDrift ? model_.plan : before, 5);
    const Lra& lra = AdapterOf(result.corrected, 3);
    ExpectMap(lra, WeightedRidge(Normed(input), Minus(end, input), Ones(), kLambda), 5e-5);
    EXPECT_TRUE(std::all_of(lra.norm.span().begin(), lra.norm.span().end(), [](float w) { return w == 1; }));
    // It runs as it was fitted: the stages are blocks 0, the adapter for 1, block 2, this adapter, block 5.
    DepthPlan without = result.corrected;
    without.stages.erase(without.stages.begin() + 3);
    const Matrix<float> h = Stream(without, 5), x = Normed(h), after = Stream(result.corrected, 5);
    for (int64_t t = 0; t < 40; ++t)
      for (int64_t j = 0; j < kWidth; ++j) {
        double expected = static_cast<double>(h(t, j)) + lra.b(0, j);
        for (int64_t k = 0; k < kWidth; ++k) expected += static_cast<double>(x(t, k)) * lra.a(k, j);
        EXPECT_NEAR(after(t, j), expected, 1e-4);
      }
  }
}

TEST_F(CorrectionFits, TokenWeightsReachEveryMode) {
  for (const Calibration mode : {Calibration::kIndependent, Calibration::kSequential, Calibration::kDrift}) {
    Recipe options = Options("layers=2");
    options.mode = mode;
    options.weighting = ParseTokenWeights("norm,first:0");
    const ShiftResult result = Run(options);
    const Matrix<float> in = Stream(model_.plan, 2), out = Stream(model_.plan, 3);
    std::vector<double> weights;
    for (int64_t t = 0; t < in.rows(); ++t) {
      double squares = 0;
      for (int64_t j = 0; j < kWidth; ++j) squares += static_cast<double>(out(t, j)) * out(t, j);
      weights.push_back(t % 32 == 0 ? 0.0 : kWidth / squares);
    }
    ExpectMap(AdapterOf(result.corrected, 2),
              WeightedRidge(in, Seen(model_.plan, 2, TapPoint::kUpdate), weights, kLambda), 1e-4);
  }
}

TEST_F(CorrectionFits, ASpanIsFittedFromItsFirstInputToItsLastOutput) {
  Recipe options = Options("layers=1,3,4,5");
  options.span = true;
  for (const Calibration mode : {Calibration::kIndependent, Calibration::kSequential, Calibration::kDrift}) {
    options.mode = mode;
    const ShiftResult result = Run(options);
    ASSERT_EQ(result.sites.size(), 2u);
    EXPECT_EQ(result.sites[1].name, "3-5");
    ASSERT_EQ(result.corrected.stages.size(), 4u);
    DepthPlan before = model_.plan;
    if (mode != Calibration::kIndependent)
      before = CorrectedPlan(kLayers, std::vector<Site>{{1, 1}}, std::vector{result.corrected.stages[1].adapter().lra});
    const Matrix<float> input = Stream(before, 3),
                        end = Stream(mode == Calibration::kDrift ? model_.plan : before, kLayers);
    ExpectMap(AdapterOf(result.corrected, 3), WeightedRidge(input, Minus(end, input), Ones(), kLambda), 5e-5);
  }
}

TEST_F(CorrectionFits, MergedRunsAreMeasuredOverTheWholeRun) {
  Recipe options = Options("layers=1,3,4");
  options.lambda = {LambdaSpec::Kind::kAbsolute, 1e-6};
  options.span = true;
  const ShiftResult span = Run(options);
  options.span = false;
  options.merge = Merge::kFull;
  const ShiftResult merged = Run(options);
  ASSERT_EQ(merged.merged_runs.size(), 1u);
  const FitReport& run = merged.merged_runs[0];
  EXPECT_EQ(run.name, "3-4");
  EXPECT_LE(run.r2_fit, span.sites[1].r2_fit + 1e-9) << "the span is the best affine map of the run";
  // By hand, on the stream of the original model.
  const auto& stage = merged.merged->stages[3].adapter();
  const Matrix<float> in = Stream(model_.plan, 3);
  test::Tokens tokens{in.Clone(), Minus(Stream(model_.plan, 5), in)};
  const double residual = test::Residual(tokens, DenseMap(context_, *stage.lra), [&] {
    Matrix<double> b(1, kWidth);
    for (int64_t j = 0; j < kWidth; ++j) b(0, j) = stage.lra->b(0, j);
    return b;
  }());
  EXPECT_NEAR(run.r2_fit, 1 - residual / test::Accumulated(tokens).CenteredDeltaSquares(), 1e-5);
}

TEST_F(CorrectionFits, GenericAffineRegressesAndTruncatesTheOutput) {
  Recipe options = Options("layers=2");
  options.correction = "generic-affine";
  const Matrix<float> in = Stream(model_.plan, 2), out = Stream(model_.plan, 3);
  AffineMap expected = WeightedRidge(in, out, Ones(), kLambda);
  for (const auto& [rank, factorization] : {std::pair(16, Factorization::kSvd), std::pair(5, Factorization::kSvd),
                                            std::pair(5, Factorization::kReducedRank)}) {
    options.rank = RankSpec::Fixed(rank);
    options.factorization = factorization;
    const ShiftResult result = Run(options);
    // W truncated as Factorize, which has tests of its own, truncates a map onto these outputs.
    RidgeSums sums(kWidth);
    sums.Add(context_, in.view(), out.view());
    RidgeSolution solution;
    solution.a = expected.a.Clone();
    solution.b = expected.b.Clone();
    const LowRank w = Factorize(context_, sums, solution, rank, factorization);
    AffineMap residual{Product(w.p, w.q), w.b.Clone()};
    for (int64_t i = 0; i < kWidth; ++i) residual.a(i, i) -= 1;
    ExpectMap(AdapterOf(result.corrected, 2), residual, 1e-4);
    EXPECT_EQ(result.sites[0].rank, rank);
  }
  // Without ridge and truncation both say the same.
  options.rank = RankSpec::Full();
  options.lambda.value = 1e-9;
  const ShiftResult affine = Run(options);
  options.correction = "lra";
  const ShiftResult lra = Run(options);
  EXPECT_LT(
      RelativeError(Doubles(AdapterOf(affine.corrected, 2).a.span()), Doubles(AdapterOf(lra.corrected, 2).a.span())),
      1e-4);
  EXPECT_NEAR(affine.sites[0].r2_fit, lra.sites[0].r2_fit, 1e-5);
}

TEST_F(CorrectionFits, BiasIsTheMeanUpdateAndNoneIsThePrunedModel) {
  Recipe options = Options("layers=1,4");
  options.correction = "bias";
  const ShiftResult result = Run(options);
  const Matrix<float> updates = Seen(model_.plan, 4, TapPoint::kUpdate);
  for (int64_t j = 0; j < kWidth; ++j) {
    double mean = 0;
    for (int64_t t = 0; t < updates.rows(); ++t) mean += updates(t, j) / static_cast<double>(updates.rows());
    EXPECT_NEAR(AdapterOf(result.corrected, 4).b(0, j), mean, 1e-6);
  }
  EXPECT_NEAR(result.sites[0].r2_fit, 0, 1e-6);
  EXPECT_EQ(result.sites[0].rank, 0);
  const Matrix<float> before = Stream(
                          CorrectedPlan(kLayers, std::vector<Site>{{1, 1}}, std::vector<std::shared_ptr<const Lra>>(1)),
                          2),
                      after = Stream(CorrectedPlan(kLayers, std::vector<Site>{{1, 1}},
                                                   std::vector{result.corrected.stages[1].adapter().lra}),
                                     2);
  for (int64_t j = 0; j < kWidth; ++j)
    EXPECT_NEAR(after(5, j), before(5, j) + AdapterOf(result.corrected, 1).b(0, j), 1e-6);
  options.correction = "none";
  const ShiftResult none = Run(options);
  EXPECT_EQ(none.corrected.stages.size(), none.pruned.stages.size());
  EXPECT_TRUE(none.sites.empty());
}

TEST_F(CorrectionFits, ReplaceMeIsLeastSquaresAndFoldedIsUnfolded) {
  Recipe options = Options("layers=2,3,5");
  options.correction = "replaceme";
  const ShiftResult result = Run(options);
  ASSERT_EQ(result.sites.size(), 2u);
  EXPECT_EQ(result.sites[0].name, "2-3");
  ASSERT_EQ(result.corrected.stages.size(), 3u);
  // T of the first run: M T = L - Y with Y = h_out - M.
  const Matrix<float> m = Seen(model_.plan, 1, TapPoint::kMlp), out = Stream(model_.plan, 2),
                      target = Stream(model_.plan, 4);
  Matrix<double> x(m.rows(), kWidth), y(m.rows(), kWidth);
  for (int64_t i = 0; i < m.size(); ++i) {
    x.data()[i] = m.data()[i];
    y.data()[i] = static_cast<double>(target.data()[i]) - out.data()[i] + m.data()[i];
  }
  const Matrix<double> t = LeastSquares(x, y, kLambda), mapped = Product(x, t);
  // Unfolded: block 1 as it is, then Y + M T. Folded: the plan, with nothing but stock blocks.
  const Matrix<float> folded = Stream(result.corrected, 4);
  std::vector<double> unfolded;
  double residual = 0, total = 0;
  const Matrix<double> mean = [&] {
    Matrix<double> sum = Matrix<double>::Zeros(1, kWidth);
    for (int64_t row = 0; row < m.rows(); ++row)
      for (int64_t j = 0; j < kWidth; ++j) sum(0, j) += (y(row, j) - x(row, j)) / static_cast<double>(m.rows());
    return sum;
  }();
  for (int64_t row = 0; row < m.rows(); ++row)
    for (int64_t j = 0; j < kWidth; ++j) {
      unfolded.push_back(static_cast<double>(out(row, j)) - m(row, j) + mapped(row, j));
      residual += std::pow(mapped(row, j) - y(row, j), 2);
      total += std::pow(y(row, j) - x(row, j) - mean(0, j), 2);
    }
  EXPECT_LT(RelativeError(Doubles(folded.span()), unfolded), 1e-5);
  EXPECT_NEAR(result.sites[0].r2_fit, 1 - residual / total, 1e-5);
  const Decoder corrected(context_, model_.weights, result.corrected), pruned(context_, model_.weights, result.pruned);
  EXPECT_EQ(corrected.Parameters(), pruned.Parameters()) << "the architecture stays stock";
}

// A block whose projections have biases, in the types weights come in: M of the folded block is M T of the block.
TEST(Fold, MapsTheMlpsOutputBiasAndAll) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto weights = GoldenWeights("llama_bias", dtype);
    const int64_t d = weights->config.hidden;
    ASSERT_FALSE(weights->blocks[1].down_bias.empty());
    Random random(5);
    Matrix<double> t(d, d);
    for (double& value : t.span()) value = random.Uniform() - 0.5;
    const auto folded = FoldIntoDown(Context(), weights->blocks[1], t.view());
    EXPECT_EQ(folded->down.dtype, dtype);
    Batch batch;
    batch.Add(std::vector<int32_t>{3, 1, 4, 1, 5, 9, 2, 6});
    Matrix<float> own, mapped;
    const auto see = [&](const DepthPlan& plan, Matrix<float>& out) {
      Decoder decoder(Context(), weights, plan,
                      {{1, TapPoint::kMlp, [&](const Rows& m, const Batch&) { out = Copied(m); }}});
      decoder.Forward(batch);
    };
    see(DepthPlan::Original(weights->config.layers), own);
    DepthPlan plan = DepthPlan::Original(weights->config.layers);
    plan.stages[1] = BlockStage{.layer = 1, .own = folded};
    see(plan, mapped);
    Matrix<double> m(own.rows(), d);
    std::copy(own.span().begin(), own.span().end(), m.data());
    const double tolerance = dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 2e-3 : 2e-2;
    EXPECT_LT(RelativeError(Doubles(mapped.span()), Product(m, t).span()), tolerance);
  }
}

TEST_F(CorrectionFits, LacoAddsTheDifferencesOfTheRemovedBlocks) {
  Recipe options = Options("layers=2,3,5");
  options.correction = "laco";
  const ShiftResult result = Run(options);
  const auto& blocks = model_.weights->blocks;
  const auto value = [](const TensorView& tensor, int64_t i) { return static_cast<const float*>(tensor.data)[i]; };
  const BlockStage& first = result.corrected.stages[1].block();
  const BlockStage& second = result.corrected.stages[2].block();
  EXPECT_EQ(first.layer, 1);
  EXPECT_EQ(second.layer, 4);
  EXPECT_EQ(result.corrected.stages[0].block().own, nullptr);
  for (TensorView BlockWeights::*member : {&BlockWeights::q, &BlockWeights::down, &BlockWeights::input_norm}) {
    for (int64_t i = 0; i < (blocks[1].*member).elements(); ++i) {
      EXPECT_NEAR(value((*first.own).*member, i),
                  value(blocks[2].*member, i) + value(blocks[3].*member, i) - value(blocks[1].*member, i), 1e-6);
      EXPECT_NEAR(value((*second.own).*member, i), value(blocks[5].*member, i), 1e-6);
    }
  }
}

// Whatever is in the table can be named, shown and fitted.
TEST_F(CorrectionFits, EveryRowOfTheTableCanBeNamedShownAndFitted) {
  std::set<std::string> labels;
  for (const Correction& correction : shiftrt::Corrections()) {
    SCOPED_TRACE(correction.name);
    EXPECT_EQ(&FindCorrection(correction.name), &correction);
    EXPECT_FALSE(correction.summary.empty());
    const std::string label = Label(correction, RankSpec::Fixed(4), false);
    EXPECT_EQ(label.find_first_of("{}"), std::string::npos) << label;
    EXPECT_EQ(label.find('4') != std::string::npos, correction.has_rank()) << label;
    EXPECT_TRUE(labels.insert(label).second) << label;
    Recipe options = Options("layers=2,3,5");
    options.correction = correction.name;
    const ShiftResult result = Run(options);
    EXPECT_EQ(result.corrected.KeptLayers(), result.pruned.KeptLayers());
    // Layers 2 and 3 are one run.
    EXPECT_EQ(std::ssize(result.corrected.Adapters()), correction.per_block() ? 3 : correction.adapters() ? 2 : 0);
    const std::vector<const BlockStage*> blocks = result.corrected.Blocks();
    EXPECT_EQ(correction.changes_blocks(),
              std::any_of(blocks.begin(), blocks.end(), [](const BlockStage* block) { return block->own != nullptr; }));
    EXPECT_EQ(result.corrected == result.pruned, correction.name == "none");
    EXPECT_EQ(result.trials.empty(), correction.needs != Needs::kText);
  }
  EXPECT_EQ(Label(FindCorrection("lra"), RankSpec::Full(), true), "span full LRA");
  EXPECT_EQ(Label(FindCorrection("auto"), RankSpec::Fixed(64), true), "auto span LRA 64");
  try {
    FindCorrection("unheard-of");
    FAIL();
  } catch (const UsageError& error) {
    for (const Correction& correction : shiftrt::Corrections())
      EXPECT_NE(std::string(error.what()).find(correction.name), std::string::npos) << error.what();
  }
}

TEST_F(CorrectionFits, RefuseWhatContradicts) {
  const auto refused = [&](const char* field, const std::function<void(Recipe&)>& change,
                           const char* prune = "layers=1,2") {
    Recipe options = Options(prune);
    change(options);
    try {
      Run(options);
      ADD_FAILURE() << field;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.field(), field) << error.what();
      EXPECT_EQ(error.reason().find("--"), std::string::npos) << error.what();
    }
  };
  refused("span", [](Recipe& o) { o.span = true, o.merge = Merge::kFull; });
  refused("gram.save", [](Recipe& o) { o.mode = Calibration::kDrift, o.gram.save = "x"; });
  refused("gram.save", [](Recipe& o) { o.span = true, o.gram.save = "x"; });
  refused("gram.load", [](Recipe& o) { o.gram = {{"x"}, "y", false}; });
  refused("rank", [](Recipe& o) { o.mode = Calibration::kSequential, o.rank = ParseRank("budget:4k"); });
  for (const char* correction :
       {"replaceme", "laco", "none", "refit", "joint", "ghosted", "linearpatch", "linearpatch-diag", "prune-comp"}) {
    refused("mode", [&](Recipe& o) { o.correction = correction, o.mode = Calibration::kSequential; });
    refused("span", [&](Recipe& o) { o.correction = correction, o.span = true; });
    refused("merge", [&](Recipe& o) { o.correction = correction, o.merge = Merge::kFull; });
    refused("gram.save", [&](Recipe& o) { o.correction = correction, o.gram.save = "x"; });
  }
  refused("heal", [](Recipe& o) { o.correction = "prune-comp", o.heal = Heal::kAll; });
  refused("gate", [](Recipe& o) { o.correction = "prune-comp", o.gate = true; });
  for (const char* correction : {"replaceme", "laco", "none", "ghosted", "linearpatch", "prune-comp"})
    refused("weighting", [&](Recipe& o) { o.correction = correction, o.weighting.norm = true; });
  for (const char* correction : {"refit", "joint"})
    refused("penalize_bias", [&](Recipe& o) { o.correction = correction, o.penalize_bias = true; });
  refused("rank", [&](Recipe& o) { o.correction = "joint", o.rank = ParseRank("budget:4k"); });
  for (const char* correction : {"replaceme", "laco", "refit"})
    refused(
        "prune", [&](Recipe& o) { o.correction = correction; }, "layers=0,3");
}

TEST_F(CorrectionFits, SavedSumsCarryTheirTokenWeights) {
  Recipe options = Options("layers=1,4");
  options.weighting.norm = true;
  options.gram.save = directory_ / "norm.gram";
  const ShiftResult saved = Run(options);
  options.gram = {{directory_ / "norm.gram"}, {}, false};
  const ShiftResult loaded = Run(options);
  EXPECT_EQ(loaded.sites[1].r2_fit, saved.sites[1].r2_fit);
  options.gram.load.clear();
  EXPECT_EQ(Run(options).sites[1].r2_fit, saved.sites[1].r2_fit);
  options.gram.load = {directory_ / "norm.gram"};
  options.weighting.norm = false;
  EXPECT_THROW(Run(options), UsageError);
}

}  // namespace
}  // namespace shiftrt
