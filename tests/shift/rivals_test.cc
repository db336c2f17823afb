// SPDX-License-Identifier: Apache-2.0
// LinearPatch, Prune&Comp and Ghosted Layers against what their papers compute, in float64 loops over tapped streams.
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "runtime/check.h"
#include "shift/corrections/hadamard.h"
#include "shift/corrections/scaling.h"
#include "shift/pipeline.h"
#include "shift/refit/fold.h"
#include "shift/sums/collect.h"
#include "tests/engine/rows.h"
#include "tests/models/fixtures.h"
#include "tests/shift/oracles.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

using test::Copied;
using test::Doubles;
using test::LeastSquares;
using test::Minus;
using test::Product;
using test::RelativeError;

using Layers = std::vector<int64_t>;

Matrix<double> Dense(const Hadamard& hadamard, int64_t n) {
  Matrix<double> h(n, n);  // column j: the image of the unit vector j
  for (int64_t j = 0; j < n; ++j) {
    std::vector<double> x(n, 0.0);
    x[j] = 1;
    hadamard.Transform(x);
    for (int64_t i = 0; i < n; ++i) h(i, j) = x[i];
  }
  return h;
}

TEST(Hadamard, IsSylvestersMatrixForPowersOfTwo) {
  for (const int64_t n : {1, 2, 16}) {
    const Matrix<double> h = Dense(Hadamard(n), n);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const int common = std::popcount(static_cast<uint64_t>(i & j));
        EXPECT_NEAR(h(i, j), (common % 2 == 0 ? 1 : -1) / std::sqrt(static_cast<double>(n)), 1e-15);
      }
  }
}

TEST(Hadamard, IsAKroneckerProductWithPaleysMatrixOtherwise) {
  for (const int64_t order : {12, 20, 28, 36, 60}) {
    const Matrix<double> paley = Dense(Hadamard(order), order), h = Dense(Hadamard(4 * order), 4 * order),
                         sylvester = Dense(Hadamard(4), 4);
    for (int64_t i = 0; i < 4 * order; ++i)
      for (int64_t j = 0; j < 4 * order; ++j) {
        double product = 0;
        for (int64_t k = 0; k < 4 * order; ++k) product += h(i, k) * h(j, k);
        EXPECT_NEAR(product, i == j ? 1 : 0, 1e-12);
        EXPECT_NEAR(std::abs(h(i, j)) * std::sqrt(4.0 * static_cast<double>(order)), 1, 1e-12);
        EXPECT_NEAR(h(i, j), paley(i / 4, j / 4) * sylvester(i % 4, j % 4), 1e-12);
      }
  }
  // 1, 2 and 4 are squares modulo 17; 3 and 5 are not.
  const Matrix<double> paley = Dense(Hadamard(36), 36);
  for (const auto& [column, sign] :
       {std::pair(0, 1), {1, 1}, {2, 1}, {3, 1}, {4, -1}, {5, 1}, {6, -1}, {18, 1}, {19, -1}})
    EXPECT_NEAR(6 * paley(1, column), sign, 1e-12) << column;
}

TEST(Hadamard, NamesTheOrdersItHasNoMatrixFor) {
  for (const int64_t n : {0, 6, 18, 52, 92, 2 * 52}) EXPECT_THROW(Hadamard{n}, Error) << n;
  try {
    Hadamard hadamard(104);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("104 = 13 x 8"), std::string::npos) << error.what();
  }
}

class Rivals : public test::SmallModel {
 protected:
  // Batches of several sequences of different lengths, so that a mean of ratios is not a ratio of means.
  Rivals() {
    Random random(11);
    calibration_.fit.clear();
    calibration_.fit_tokens = 0;
    for (const Layers& lengths : {Layers{20, 3, 9}, Layers{31}, Layers{7, 25}}) {
      Batch& batch = calibration_.fit.emplace_back();
      for (const int64_t length : lengths) {
        std::vector<int32_t> tokens(length);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(kVocab));
        batch.Add(tokens);
      }
      calibration_.fit_tokens += batch.size();
    }
  }

  ShiftResult Run(const char* correction, const std::string& prune) {
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune(prune);
    options.correction = correction;
    NoProgress progress;
    return Shift({context_, model_, calibration_, progress}, options);
  }

  // The stream before a layer: one matrix per sequence.
  std::vector<Matrix<float>> Streams(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                                     int64_t layer) const {
    std::vector<Matrix<float>> streams;
    Decoder decoder(context_, weights, plan,
                    {{layer, TapPoint::kInput, [&](const Rows& h, const Batch& batch) {
                        for (int64_t s = 0; s < batch.sequences(); ++s)
                          streams.push_back(Copied(h.Slice(batch.offsets[s], batch.offsets[s + 1] - batch.offsets[s])));
                      }}});
    for (const Batch& batch : calibration_.fit) decoder.Forward(batch);
    return streams;
  }
  Matrix<float> Stream(int64_t layer) const {
    Matrix<float> all(calibration_.fit_tokens, kWidth);
    int64_t row = 0;
    for (const Matrix<float>& stream : Streams(model_.weights, model_.plan, layer))
      for (int64_t t = 0; t < stream.rows(); ++t, ++row) std::copy_n(stream.row(t), kWidth, all.row(row));
    return all;
  }

  // LinearPatch's d in the coordinates h (d, d) h.
  std::vector<double> Ratios(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                             const StreamSpan& span, const Matrix<double>& h) const {
    const auto sizes = [&](const Matrix<float>& stream) {
      std::vector<double> sums(kWidth, 0.0);
      for (int64_t t = 0; t < stream.rows(); ++t)
        for (int64_t k = 0; k < kWidth; ++k) {
          double coordinate = 0;
          for (int64_t j = 0; j < kWidth; ++j) coordinate += h(k, j) * stream(t, j);
          sums[k] += std::abs(coordinate) / static_cast<double>(stream.rows());
        }
      return sums;
    };
    const auto before = Streams(weights, plan, span.begin), after = Streams(weights, plan, span.end);
    std::vector<double> ratios(kWidth, 0.0);
    for (size_t s = 0; s < before.size(); ++s) {
      const std::vector<double> x = sizes(before[s]), y = sizes(after[s]);
      for (int64_t k = 0; k < kWidth; ++k) ratios[k] += y[k] / x[k] / static_cast<double>(before.size());
    }
    return ratios;
  }
  static Matrix<double> Identity() {
    Matrix<double> identity = Matrix<double>::Zeros(kWidth, kWidth);
    for (int64_t i = 0; i < kWidth; ++i) identity(i, i) = 1;
    return identity;
  }
  double MeanRatio(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan, const StreamSpan& span) const {
    const std::vector<double> ratios = Ratios(weights, plan, span, Identity());
    return std::accumulate(ratios.begin(), ratios.end(), 0.0) / kWidth;
  }

  // The paper's fold: embedding, and o and down projections of all blocks before `layer`, times `scale`; with a tied
  // head, the logits too are, and the final norm's weight takes the factor out again.
  std::shared_ptr<Weights> ScaledBefore(const Weights& weights, int64_t layer, double scale) const {
    auto scaled = std::make_shared<Weights>(weights);
    const auto multiply = [&](TensorView& tensor, double by) {
      auto values = std::make_shared<std::vector<float>>(tensor.elements());
      for (size_t i = 0; i < values->size(); ++i)
        (*values)[i] = static_cast<float>(static_cast<const float*>(tensor.data)[i] * by);
      tensor.data = values->data();
      scaled->storage.push_back(values);
    };
    multiply(scaled->embedding, scale);
    multiply(scaled->head, scale);
    multiply(scaled->final_norm, 1 / scale);
    for (int64_t block = 0; block < layer; ++block)
      for (TensorView BlockWeights::*member : {&BlockWeights::o, &BlockWeights::down})
        multiply(scaled->blocks[block].*member, scale);
    return scaled;
  }

  Matrix<float> Logits(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan) const {
    Decoder decoder(context_, weights, plan);
    return decoder.Logits(decoder.Forward(calibration_.fit[0]));
  }
};

TEST_F(Rivals, LinearPatchScalesTheHadamardTransform) {
  for (const bool rotated : {true, false}) {
    const ShiftResult result = Run(rotated ? "linearpatch" : "linearpatch-diag", "layers=2,3,5");
    const Matrix<double> h = rotated ? Dense(Hadamard(kWidth), kWidth) : Identity();
    ASSERT_EQ(result.sites.size(), 2u);
    const std::vector<const AdapterStage*> adapters = result.corrected.Adapters();
    ASSERT_EQ(adapters.size(), 2u);
    for (const auto& [i, span] : {std::pair(size_t{0}, StreamSpan{2, 4}), {size_t{1}, StreamSpan{5, 6}}}) {
      const std::vector<double> d = Ratios(model_.weights, model_.plan, span, h);
      Matrix<double> patch(kWidth, kWidth);
      for (int64_t a = 0; a < kWidth; ++a)
        for (int64_t b = 0; b < kWidth; ++b) {
          patch(a, b) = a == b ? -1 : 0;
          for (int64_t k = 0; k < kWidth; ++k) patch(a, b) += h(k, a) * d[k] * h(k, b);
        }
      const Lra& lra = *adapters[i]->lra;
      EXPECT_LT(RelativeError(Doubles(lra.a.span()), patch.span()), 1e-5);
      for (const float b : lra.b.span()) EXPECT_EQ(b, 0);
      EXPECT_NEAR(result.sites[i].scale, std::accumulate(d.begin(), d.end(), 0.0) / kWidth, 1e-5);
      EXPECT_EQ(result.sites[i].tokens, calibration_.fit_tokens);
      EXPECT_TRUE(std::isnan(result.sites[i].r2_fit));
    }
  }
}

TEST_F(Rivals, GhostedIsLeastSquaresAndASpanWithoutBias) {
  const ShiftResult result = Run("ghosted", "layers=2,3,5");
  const std::vector<const AdapterStage*> adapters = result.corrected.Adapters();
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0]->parts, (std::vector<BlockPart>{2, 3}));
  CalibrationSums sums;
  for (const Site& site : RunsOf({2, 3, 5})) sums.sites.emplace_back(site, kWidth);
  NoProgress progress;
  Collect({context_, model_, calibration_, progress}, sums);
  for (const auto& [i, span] : {std::pair(size_t{0}, StreamSpan{2, 4}), {size_t{1}, StreamSpan{5, 6}}}) {
    const Lra& lra = *adapters[i]->lra;
    const Matrix<float> x = Stream(span.begin), update = Minus(Stream(span.end), x);
    Matrix<double> inputs(x.rows(), kWidth), target(x.rows(), kWidth);
    for (int64_t j = 0; j < x.size(); ++j) {
      inputs.data()[j] = x.data()[j];
      target.data()[j] = update.data()[j];
    }
    const Matrix<double> m = LeastSquares(inputs, target, 1e-6);
    EXPECT_LT(RelativeError(Doubles(lra.a.span()), m.span()), 1e-4);
    for (const float b : lra.b.span()) EXPECT_EQ(b, 0);

    SiteSums bare(sums.sites[i].site, sums.sites[i].fit.WithoutMeans(), sums.sites[i].heldout.WithoutMeans());
    FitOptions options;
    options.rank = RankSpec::Full();
    options.ridge.lambda = {LambdaSpec::Kind::kAbsolute, 1e-6};
    const auto spanned = FitSites(context_, {&bare}, options, progress).adapters[0];
    EXPECT_LT(RelativeError(Doubles(lra.a.span()), Doubles(spanned->a.span())), 1e-6);
    EXPECT_EQ(result.sites[i].lambda, 1e-6);
    EXPECT_GT(result.sites[i].r2_fit, 0);
  }
}

// The plan divides after its cuts where the paper multiplies before them.
TEST_F(Rivals, PruneCompIsThePapersFold) {
  const ShiftResult result = Run("prune-comp", "layers=0,2,3,5");
  ASSERT_EQ(result.sites.size(), 3u);
  std::shared_ptr<const Weights> paper = model_.weights;
  for (const auto& [i, span] :
       {std::pair(size_t{0}, StreamSpan{0, 1}), {size_t{1}, StreamSpan{2, 4}}, {size_t{2}, StreamSpan{5, 6}}}) {
    const double scale = MeanRatio(model_.weights, model_.plan, span);
    EXPECT_NEAR(result.sites[i].scale, scale, 1e-5);
    paper = ScaledBefore(*paper, span.begin, scale);
  }
  const Matrix<float> expected = Logits(paper, result.pruned), found = Logits(model_.weights, result.corrected);
  EXPECT_LT(RelativeError(Doubles(found.span()), Doubles(expected.span())), 1e-4);
  EXPECT_GT(RelativeError(Doubles(Logits(model_.weights, result.pruned).span()), Doubles(expected.span())), 1e-2);
  const std::vector<const BlockStage*> blocks = result.corrected.Blocks();
  ASSERT_EQ(blocks.size(), 2u);
  for (const BlockStage* block : blocks) ASSERT_NE(block->own, nullptr) << block->layer;
  EXPECT_EQ(blocks[0]->own->gate.data, model_.weights->blocks[1].gate.data) << "what does not change is shared";
}

TEST(DividedAfter, DividesBiasesInTheTypesTheyHave) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto weights = GoldenWeights("llama_bias", dtype);
    const DepthPlan plan = DepthPlan::Pruned(weights->config.layers, Layers{0});
    const std::vector<Cut> cuts = {{0, 2.0}};  // exact in every type
    const std::vector<BlockStage> divided = DividedAfter(*weights, plan, cuts);
    ASSERT_EQ(std::ssize(divided), weights->config.layers - 1);
    const BlockWeights &own = *divided[0].own, &model = weights->blocks[1];
    for (TensorView BlockWeights::*member :
         {&BlockWeights::o, &BlockWeights::o_bias, &BlockWeights::down, &BlockWeights::down_bias}) {
      ASSERT_FALSE((model.*member).empty());
      EXPECT_EQ((own.*member).dtype, dtype);
      const Matrix<double> before = InFloat64(model.*member), after = InFloat64(own.*member);
      for (int64_t i = 0; i < before.size(); ++i) EXPECT_EQ(after.data()[i], before.data()[i] / 2);
    }
  }
}

// Round by round on models that are folded as the paper folds them.
TEST_F(Rivals, PruneCompSelectsOnWhatIsLeft) {
  const ShiftResult result = Run("none", "prune-comp:3,keep=first:1,last:1");
  std::shared_ptr<const Weights> paper = model_.weights;
  Layers removed;
  std::vector<double> expected(kLayers, std::nan(""));
  for (int round = 0; round < 3; ++round) {
    const DepthPlan plan = DepthPlan::Pruned(kLayers, removed);
    Layers depths = plan.KeptLayers();
    depths.push_back(kLayers);
    int64_t best = -1;
    double lowest = 2;
    StreamSpan cut;
    for (size_t i = 0; i + 1 < depths.size(); ++i) {
      if (depths[i] < 1 || depths[i] >= kLayers - 1) continue;
      const auto before = Streams(paper, plan, depths[i]), after = Streams(paper, plan, depths[i + 1]);
      double cosines = 0;
      for (size_t s = 0; s < before.size(); ++s)
        for (int64_t t = 0; t < before[s].rows(); ++t) {
          double xy = 0, xx = 0, yy = 0;
          for (int64_t k = 0; k < kWidth; ++k) {
            const double x = before[s](t, k), y = after[s](t, k);
            xy += x * y, xx += x * x, yy += y * y;
          }
          cosines += xy / std::sqrt(xx * yy);
        }
      const double score = expected[depths[i]] = 1 - cosines / static_cast<double>(calibration_.fit_tokens);
      if (score > lowest) continue;
      lowest = score;
      best = depths[i];
      cut = {depths[i], depths[i + 1]};
    }
    paper = ScaledBefore(*paper, best, MeanRatio(paper, plan, cut));
    removed.push_back(best);
  }
  std::sort(removed.begin(), removed.end());
  EXPECT_EQ(LayersOf(result.selection.removed), removed);
  for (int64_t layer = 1; layer < kLayers - 1; ++layer)
    EXPECT_NEAR(result.selection.scores[layer], expected[layer], 1e-5) << layer;
  EXPECT_TRUE(std::isnan(result.selection.scores[0]));
}

// Nothing to divide by: the error names the channel.
TEST_F(Rivals, AChannelThatIsAlwaysZeroHasNoRatio) {
  auto weights = std::make_shared<Weights>(*model_.weights);
  std::vector<float> embedding(weights->embedding.elements());
  std::copy_n(static_cast<const float*>(weights->embedding.data), embedding.size(), embedding.data());
  for (int64_t token = 0; token < kVocab; ++token) embedding[token * kWidth + 7] = 0;
  weights->embedding.data = embedding.data();
  model_.weights = weights;
  try {
    Run("prune-comp", "layers=0");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("channel 7"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(Run("prune-comp", "layers=1"));
}

}  // namespace
}  // namespace shiftrt
