// SPDX-License-Identifier: Apache-2.0
// The projection before a removed run and an adapter on the normed stream in its place (norm-refit), against
// regressions of the tokens.
#include <algorithm>
#include <cmath>
#include <vector>

#include "shift/pipeline.h"
#include "tests/shift/oracles.h"
#include "tests/shift/small_fits.h"

namespace shiftrt {
namespace {

using test::AffineMap;
using test::Doubles;
using test::Floats;
using test::Minus;
using test::Normed;
using test::RelativeError;
using test::WeightedRidge;

class NormRefit : public test::SmallFits {
 protected:
  NormRefit() { calibration_ = MakeCalibration(4, 32); }

  Matrix<float> Stream(const DepthPlan& plan, int64_t layer) { return Seen(plan, layer, TapPoint::kInput); }
  // The stream after stage `stage` - 1 of a plan, of which the later stages are cut off.
  Matrix<float> Before(const DepthPlan& plan, size_t stage) {
    DepthPlan cut = plan;
    cut.stages.erase(cut.stages.begin() + static_cast<std::ptrdiff_t>(stage), cut.stages.end() - 1);
    return Stream(cut, cut.stages.back().block().layer);
  }
  static std::vector<double> Ones() { return std::vector<double>(kTokens, 1.0); }
  void ExpectMap(const Lra& lra, const AffineMap& map) {
    EXPECT_LT(RelativeError(DenseMap(context_, lra).span(), map.a.span()), 1e-4);
    EXPECT_LT(RelativeError(Doubles(lra.b.span()), map.b.span()), 1e-4);
    EXPECT_TRUE(std::ranges::all_of(lra.norm.span(), [](float w) { return w == 1; }));
  }
  // Sum of the squares about the means of the columns.
  static double Variation(const Matrix<float>& m) {
    double sum = 0;
    for (int64_t j = 0; j < m.cols(); ++j) {
      double mean = 0;
      for (int64_t t = 0; t < m.rows(); ++t) mean += m(t, j) / static_cast<double>(m.rows());
      for (int64_t t = 0; t < m.rows(); ++t) sum += std::pow(m(t, j) - mean, 2);
    }
    return sum;
  }
};

TEST_F(NormRefit, HasRefitsProjectionAndARidgeOnTheNormOfWhatItLeaves) {
  const ShiftResult refit = Run(Options("refit", "layers=2,3")), result = Run(Options("norm-refit", "layers=2,3"));
  ASSERT_EQ(result.corrected.stages.size(), 5u);
  EXPECT_EQ(Floats(Own(result.corrected, 1)->down), Floats(Own(refit.corrected, 1)->down));
  const AdapterStage& adapter = result.corrected.stages[2].adapter();
  EXPECT_EQ(adapter.parts, (std::vector<BlockPart>{2, 3}));
  const Matrix<float> out = Before(result.corrected, 2), end = Stream(model_.plan, 4), missing = Minus(end, out);
  ExpectMap(*adapter.lra, WeightedRidge(Normed(out), missing, Ones(), kLambda));
  // R2 is the share of what was missing after the old projection.
  ASSERT_EQ(result.sites.size(), 1u);
  const double left = Variation(Minus(end, Stream(result.corrected, 4))),
               before = Variation(Minus(end, Seen(model_.plan, 1, TapPoint::kOutput)));
  EXPECT_NEAR(result.sites[0].r2_fit, 1 - left / before, 1e-4);
  EXPECT_GT(result.sites[0].r2_fit, refit.sites[0].r2_fit);
  EXPECT_FALSE(result.sites[0].singular_values.empty());
}

TEST_F(NormRefit, LaterRunsReadWhatEarlierOnesLeave) {
  Recipe options = Options("norm-refit", "layers=1,4");
  options.rank = RankSpec::Fixed(3);
  options.heal = Heal::kAll;
  const ShiftResult result = Run(options);
  ASSERT_EQ(result.corrected.stages.size(), static_cast<size_t>(kLayers));
  ASSERT_EQ(result.corrected.Adapters().size(), 2u);
  for (const AdapterStage* adapter : result.corrected.Adapters()) {
    EXPECT_EQ(adapter->lra->rank(), 3);
    EXPECT_TRUE(adapter->lra->normed());
  }
  // With full rank, the second adapter is a ridge on the stream that the first one and the projection of block 3 leave.
  options.rank = RankSpec::Full();
  options.heal = Heal::kOff;
  const ShiftResult full = Run(options);
  const DepthPlan& plan = full.corrected;
  const Matrix<float> out = Before(plan, 4);
  ExpectMap(*plan.stages[4].adapter().lra,
            WeightedRidge(Normed(out), Minus(Stream(model_.plan, 5), out), Ones(), kLambda));
}

// There is no block before layer 0: the run's adapter reads the norm of the embeddings, and is all there is.
TEST_F(NormRefit, AtLayerZeroIsAnAdapterAlone) {
  const ShiftResult result = Run(Options("norm-refit", "layers=0,1"));
  const AdapterStage& adapter = result.corrected.stages[0].adapter();
  const Matrix<float> in = Stream(model_.plan, 0);
  ExpectMap(*adapter.lra, WeightedRidge(Normed(in), Minus(Stream(model_.plan, 2), in), Ones(), kLambda));
}

// The output projection is fitted if the attention alone stays before a run.
TEST_F(NormRefit, AfterAnAttentionFitsItsOutputProjection) {
  const ShiftResult result = Run(Options("norm-refit", "layers=2.mlp-3.attn"));
  const size_t at = result.corrected.StageOf(2);
  EXPECT_NE(Floats(Own(result.corrected, 2)->o), Floats(Old(2).o));
  const AdapterStage& adapter = result.corrected.stages[at + 1].adapter();
  const Matrix<float> out = Before(result.corrected, at + 1), end = [&] {
    Matrix<float> sum = Stream(model_.plan, 3);
    const Matrix<float> update = Seen(model_.plan, 3, TapPoint::kAttention);
    for (int64_t i = 0; i < sum.size(); ++i) sum.data()[i] += update.data()[i];
    return sum;
  }();
  ExpectMap(*adapter.lra, WeightedRidge(Normed(out), Minus(end, out), Ones(), kLambda));
}

}  // namespace
}  // namespace shiftrt
