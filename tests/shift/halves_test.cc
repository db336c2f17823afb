// SPDX-License-Identifier: Apache-2.0
// Halves of blocks as the unit of selection, fitting, merging and saving, against definitions written down on the
// tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>

#include "models/adapted.h"
#include "models/block_tensors.h"
#include "runtime/check.h"
#include "shift/pipeline.h"
#include "shift/sweep.h"
#include "tests/shift/oracles.h"
#include "tests/shift/small_fits.h"

namespace shiftrt {
namespace {

using test::AffineMap;
using test::Concatenated;
using test::Doubles;
using test::Floats;
using test::LeastSquares;
using test::Minus;
using test::RelativeError;
using test::WeightedRidge;
using test::Widen;
using Parts = std::vector<BlockPart>;

Matrix<float> Plus(const Matrix<float>& a, const Matrix<float>& b) {
  Matrix<float> sum = a.Clone();
  for (int64_t i = 0; i < sum.size(); ++i) sum.data()[i] += b.data()[i];
  return sum;
}

constexpr Halves kAttn = Halves::kAttention, kMlp = Halves::kMlp;

class HalvesOfBlocks : public test::SmallFits {
 protected:
  static constexpr int64_t kAttentionSize = 784, kMlpSize = 1168;  // parameters: projections and norm

  HalvesOfBlocks() { calibration_ = MakeCalibration(4, 32); }

  Selection Select(const std::string& prune) {
    NoProgress progress;
    return SelectLayers(ParsePrune(prune), {context_, model_.weights, &calibration_.fit, 3}, progress);
  }

  // The original stream before a place.
  Matrix<float> Before(int64_t place) {
    const Matrix<float> input = Seen(model_.plan, place / 2, TapPoint::kInput);
    return place % 2 == 0 ? input.Clone() : Plus(input, Seen(model_.plan, place / 2, TapPoint::kAttention));
  }
  // Mean of -log softmax over every predicted token, from whole logits.
  double Loss(const DepthPlan& plan) {
    Decoder decoder(context_, model_.weights, plan);
    double sum = 0;
    int64_t count = 0;
    for (const Batch& batch : calibration_.fit) {
      const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
      for (int64_t t = 0; t + 1 < batch.size(); ++t, ++count) {
        double total = 0;
        for (int64_t v = 0; v < kVocab; ++v) total += std::exp(static_cast<double>(logits(t, v)));
        sum += std::log(total) - logits(t, batch.tokens[t + 1]);
      }
    }
    return sum / static_cast<double>(count);
  }

  // The adapter maps H (row vectors) as the ridge regression of `missing` on it does.
  void ExpectAdapter(const AdapterStage& adapter, const Matrix<float>& inputs, const Matrix<float>& missing) {
    const AffineMap map = WeightedRidge(inputs, missing, std::vector<double>(kTokens, 1.0), kLambda);
    EXPECT_LT(RelativeError(Doubles(adapter.lra->a.span()), map.a.span()), 1e-4) << Names(adapter.parts);
    EXPECT_LT(RelativeError(Doubles(adapter.lra->b.span()), map.b.span()), 1e-4) << Names(adapter.parts);
  }
};

double Cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

TEST_F(HalvesOfBlocks, InfluenceIsThatOfTheStreamAroundEachHalf) {
  const Selection bi = Select("bi:4,unit=half"), frobenius = Select("bi:frobenius:4,unit=half"),
                  angular = Select("angular:3,unit=half"), streamline = Select("streamline:2,unit=half");
  ASSERT_EQ(std::ssize(bi.scores), 2 * kLayers);
  ASSERT_EQ(std::ssize(angular.scores), 2 * kLayers - 2);
  EXPECT_EQ(angular.window, 3);
  EXPECT_EQ(bi.unit, Unit::kHalf);
  std::vector<Matrix<float>> before;
  for (int64_t place = 0; place <= 2 * kLayers; ++place) before.push_back(Before(place));
  const auto row = [&](int64_t place, int64_t t) {
    return std::span<const float>(before[place].row(t), static_cast<size_t>(kWidth));
  };
  for (int64_t place = 0; place < 2 * kLayers; ++place) {
    double sum = 0;
    for (int64_t t = 0; t < kTokens; ++t) sum += Cosine(row(place, t), row(place + 1, t));
    EXPECT_NEAR(bi.scores[place], 1 - sum / kTokens, 1e-9) << place;
    EXPECT_NEAR(frobenius.scores[place], 1 - Cosine(before[place].span(), before[place + 1].span()), 1e-9) << place;
  }
  for (int64_t place = 0; place + 3 <= 2 * kLayers; ++place) {
    double angles = 0;
    for (int64_t last = 31; last < kTokens; last += 32)
      angles += std::acos(Cosine(row(place, last), row(place + 3, last))) / std::numbers::pi;
    EXPECT_NEAR(angular.scores[place], angles / 28, 1e-9) << place;
  }
  const int64_t best = Ranking(angular.scores, 0, std::ssize(angular.scores)).front();
  EXPECT_EQ(angular.removed, PartsBetween(best, best + 3));
  for (int64_t place = 0; place + 2 <= 2 * kLayers; ++place) {
    double sum = 0;
    for (int64_t t = 0; t < kTokens; ++t) sum += Cosine(row(place, t), row(place + 2, t));
    EXPECT_NEAR(streamline.scores[place], 1 - sum / kTokens, 1e-9) << place;
  }
}

TEST_F(HalvesOfBlocks, ScoresOfWeightsAreThoseOfTheHalfsOwn) {
  for (const char* criterion : {"magnitude-l1", "magnitude-l2", "taylor"}) {
    const std::vector<double> blocks = Select(fmt::format("{}:2", criterion)).scores,
                              halves = Select(fmt::format("{}:2,unit=half", criterion)).scores;
    ASSERT_EQ(std::ssize(halves), 2 * kLayers);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_NEAR(halves[2 * layer] + halves[2 * layer + 1], blocks[layer], 1e-9 * blocks[layer]) << criterion;
      EXPECT_NE(halves[2 * layer], halves[2 * layer + 1]);
    }
  }
  const std::vector<double> squares = Select("magnitude-l2:2,unit=half").scores;
  double mlp = 0;
  ForEachTensor(Old(3), kMlp, [&](const BlockTensor&, const TensorView& tensor) {
    for (const float w : Floats(tensor)) mlp += static_cast<double>(w) * w;
  });
  EXPECT_NEAR(squares[7], mlp, 1e-9 * mlp);
}

TEST_F(HalvesOfBlocks, LossesAreThoseOfTheModelWithoutTheHalf) {
  const Selection selection = Select("ppl:2,unit=half");
  for (int64_t place = 0; place < 2 * kLayers; ++place) {
    const double expected = std::exp(Loss(DepthPlan::Pruned(kLayers, Parts{BlockPart::At(place)})));
    EXPECT_NEAR(selection.scores[place], expected, 1e-5 * expected);
  }
  std::vector<int64_t> gone;
  for (int round = 0; round < 3; ++round) {
    int64_t best = -1;
    double lowest = std::numeric_limits<double>::infinity();
    for (int64_t place = 2 * kLayers - 1; place >= 2; --place) {  // keep=first:1
      if (std::find(gone.begin(), gone.end(), place) != gone.end()) continue;
      std::vector<int64_t> without = gone;
      without.push_back(place);
      std::sort(without.begin(), without.end());
      const double loss = Loss(DepthPlan::Pruned(kLayers, PartsAt(without)));
      if (loss >= lowest) continue;
      lowest = loss;
      best = place;
    }
    gone.push_back(best);
  }
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(Select("ppl-greedy:3,unit=half,keep=first:1").removed, PartsAt(gone));
}

TEST_F(HalvesOfBlocks, CorrectableIsWhatTheBestAdapterOfTheHalfLeaves) {
  const Selection selection = Select("correctable:2,rank=5,unit=half");
  for (const int64_t place : {4, 5}) {
    const test::Tokens tokens{Before(place), Seen(model_.plan, 2, place == 4 ? TapPoint::kAttention : TapPoint::kMlp)};
    const std::vector<double> relative = test::RelativeWeights(tokens);
    std::vector<double> weights = relative;
    for (double& weight : weights) weight *= static_cast<double>(tokens.h.cols());
    const RidgeSums sums = test::Accumulated(tokens, weights);
    const LowRank best = Factorize(context_, sums, SolveRidge(context_, sums, {}), 5, Factorization::kReducedRank);
    const double residual =
        test::Residual(tokens, test::Product(best.p, best.q), best.b, relative) / static_cast<double>(tokens.h.rows());
    EXPECT_NEAR(selection.scores[place], residual, 1e-6 * residual);
  }
  const Selection greedy = Select("correctable-greedy:3,rank=5,unit=half,tokens=64");
  int64_t halves = 0;
  for (const BlockPart& part : greedy.removed) halves += part.end() - part.begin();
  EXPECT_EQ(halves, 3);
}

TEST_F(HalvesOfBlocks, FixedCriteriaCountHalves) {
  EXPECT_EQ(Select("reverse:3,unit=half").removed, (Parts{{4, kMlp}, 5}));
  EXPECT_EQ(Select("reverse*:3,unit=half").removed, (Parts{{3, kMlp}, 4}));
  EXPECT_EQ(Select("reverse:3,unit=half,keep=last:2").removed, (Parts{{2, kMlp}, 3}));
  EXPECT_EQ(Select("random:5,unit=half").scores.size(), 12u);
  EXPECT_EQ(Select("layers=2.attn,4.mlp-5").removed, (Parts{{2, kAttn}, {4, kMlp}, 5}));
  EXPECT_EQ(Select("layers=2.attn").unit, Unit::kHalf);
  EXPECT_THROW(Select("reverse:12,unit=half"), UsageError);
  EXPECT_THROW(Select("reverse:11,unit=half,keep=first:1"), UsageError);
  EXPECT_THROW(Select("reverse:0.1,unit=half"), UsageError) << "a share removes what it would remove of whole blocks";
  EXPECT_THROW(Select("layers=6.attn"), UsageError);
}

// A share is the bytes of as many blocks: here 3,904 parameters, those of two.
TEST_F(HalvesOfBlocks, AShareIsThatOfTheBytesAndPassesOverWhatExceedsIt) {
  const auto removed = [&](const std::string& prune, const std::vector<int64_t>& order) {
    std::vector<double> scores(2 * kLayers, 100.0);
    for (size_t i = 0; i < order.size(); ++i) scores[order[i]] = static_cast<double>(i);
    return PickInOrder(scores, Quota(ParsePrune(prune), *model_.weights));
  };
  const std::string third = "bi:0.34,unit=half";
  ASSERT_EQ(DepthPlan::Original(kLayers).Parameters(*model_.weights) -
                DepthPlan::Pruned(kLayers, Parts{0, 1}).Parameters(*model_.weights),
            2 * (kAttentionSize + kMlpSize));
  EXPECT_EQ(Select("reverse:0.34,unit=half").removed, (Parts{4, 5}));
  // 1,168 + 1,168 + 784 = 3,120; another MLP would make it 4,288; an attention 3,904.
  EXPECT_EQ(removed(third, {1, 3, 4, 7, 8}), (Parts{{0, kMlp}, {1, kMlp}, {2, kAttn}, {4, kAttn}}));
  // Four attentions are 3,136, and a fifth would exceed it; so would any MLP.
  EXPECT_EQ(removed(third, {0, 2, 4, 6, 8, 10}), (Parts{{0, kAttn}, {1, kAttn}, {2, kAttn}, {3, kAttn}}));
  EXPECT_EQ(removed(third + ",keep=first:3", {0, 2, 4, 6, 8}), (Parts{{3, kAttn}, {4, kAttn}, 5}))
      << "after what is named, ties go to the deeper half";
  EXPECT_THROW(removed(third + ",keep=first:5", {}), UsageError);
}

// An attention has 784 parameters and an MLP 1,168; a third of the model has room for two of each.
TEST_F(HalvesOfBlocks, AShareTakesWhatIsLeastWorthPerSize) {
  std::vector<double> scores(2 * kLayers, 100.0);
  scores[0] = scores[2] = scores[4] = 0.8;  // attentions: 1.02e-3 per parameter
  scores[5] = scores[7] = 1.1;              // MLPs: 0.94e-3 per parameter
  const auto removed = [&](const char* prune) { return PickUnits(scores, Quota(ParsePrune(prune), *model_.weights)); };
  EXPECT_EQ(removed("bi:0.34,unit=half"), (Parts{{1, kAttn}, 2, {3, kMlp}}))
      << "both MLPs, then the deepest attentions";
  EXPECT_EQ(removed("bi:3,unit=half"), (Parts{{0, kAttn}, {1, kAttn}, {2, kAttn}})) << "a number counts halves";
}

// The same search by hand: the loss rises least per parameter.
TEST_F(HalvesOfBlocks, GreedySharesCompareIncreasesOfTheLossPerSize) {
  const int64_t room = 2 * (kAttentionSize + kMlpSize);
  std::vector<int64_t> gone;
  int64_t taken = 0;
  double before = Loss(DepthPlan::Original(kLayers));
  while (true) {
    int64_t best = -1;
    double lowest = std::numeric_limits<double>::infinity(), loss = 0;
    for (int64_t place = 2 * kLayers - 1; place >= 0; --place) {
      const int64_t size = place % 2 == 0 ? kAttentionSize : kMlpSize;
      if (std::find(gone.begin(), gone.end(), place) != gone.end() || taken + size > room) continue;
      std::vector<int64_t> without = gone;
      without.push_back(place);
      std::sort(without.begin(), without.end());
      const double left = Loss(DepthPlan::Pruned(kLayers, PartsAt(without)));
      if ((left - before) / static_cast<double>(size) >= lowest) continue;
      lowest = (left - before) / static_cast<double>(size);
      loss = left;
      best = place;
    }
    if (best < 0) break;
    gone.push_back(best);
    taken += best % 2 == 0 ? kAttentionSize : kMlpSize;
    before = loss;
  }
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(Select("ppl-greedy:0.34,unit=half").removed, PartsAt(gone));
}

TEST_F(HalvesOfBlocks, ATargetIsReachedWithNoHalfMoreThanItTakes) {
  const int64_t all = DepthPlan::Original(kLayers).Parameters(*model_.weights);
  const auto removed = [&](int64_t less, const std::vector<int64_t>& order) {
    std::vector<double> scores(2 * kLayers, 100.0);
    for (size_t i = 0; i < order.size(); ++i) scores[order[i]] = static_cast<double>(i);
    return PickInOrder(scores, Quota(ParsePrune(fmt::format("bi:params={},unit=half", all - less)), *model_.weights));
  };
  EXPECT_EQ(removed(784, {0, 3}), (Parts{{0, kAttn}}));
  EXPECT_EQ(removed(1500, {0, 3}), (Parts{{0, kAttn}, {1, kMlp}}));
  EXPECT_EQ(removed(1000, {0, 3}), (Parts{{1, kMlp}})) << "with the MLP gone, the attention need not be";
  const Selection bytes = Select(fmt::format("reverse:bytes={},unit=half", 4 * (all - 1168)));
  EXPECT_EQ(bytes.removed, (Parts{{5, kMlp}}));
  EXPECT_THROW(Select("reverse:params=10,unit=half"), UsageError);
}

TEST_F(HalvesOfBlocks, BothHalvesOfABlockAreTheBlock) {
  const ShiftResult halves = Run(Options("lra", "layers=2.attn,2.mlp")), block = Run(Options("lra", "layers=2"));
  EXPECT_EQ(halves.selection.removed, (Parts{2}));
  EXPECT_EQ(halves.corrected.Fingerprint(), block.corrected.Fingerprint());
}

TEST_F(HalvesOfBlocks, AdaptersStandForTheUpdateOfTheHalf) {
  const ShiftResult result = Run(Options("lra", "layers=2.attn,4.mlp"));
  const std::vector<Stage>& stages = result.corrected.stages;
  ASSERT_EQ(stages.size(), 8u);
  EXPECT_EQ(stages[2].adapter().parts, (Parts{{2, kAttn}}));
  EXPECT_EQ(stages[3].block().halves, kMlp);
  EXPECT_EQ(stages[5].block().halves, kAttn);
  EXPECT_EQ(stages[6].adapter().parts, (Parts{{4, kMlp}}));
  EXPECT_EQ(result.sites[0].name, "2.attn");
  EXPECT_EQ(result.pruned.stages.size(), 6u);
  ExpectAdapter(stages[2].adapter(), Before(4), Seen(model_.plan, 2, TapPoint::kAttention));
  ExpectAdapter(stages[6].adapter(), Before(9), Seen(model_.plan, 4, TapPoint::kMlp));
}

TEST_F(HalvesOfBlocks, ASpanStandsForARunThatBeginsAndEndsWithHalves) {
  Recipe options = Options("lra", "layers=1.mlp-3.attn,5.mlp");
  options.span = true;
  const ShiftResult result = Run(options);
  ASSERT_EQ(result.sites.size(), 2u);
  EXPECT_EQ(result.sites[0].name, "1.mlp-3.attn");
  const std::vector<const AdapterStage*> adapters = result.corrected.Adapters();
  EXPECT_EQ(adapters[0]->parts, (Parts{{1, kMlp}, 2, {3, kAttn}}));
  ExpectAdapter(*adapters[0], Before(3), Minus(Before(7), Before(3)));
  ExpectAdapter(*adapters[1], Before(11), Minus(Before(12), Before(11)));
}

TEST_F(HalvesOfBlocks, FitsInSequenceReadTheCorrectedStream) {
  for (const Calibration mode : {Calibration::kSequential, Calibration::kDrift}) {
    Recipe options = Options("lra", "layers=1.mlp,3.attn,4.mlp");
    options.mode = mode;
    const ShiftResult result = Run(options);
    const std::vector<const AdapterStage*> adapters = result.corrected.Adapters();
    ExpectAdapter(*adapters[0], Before(3), Seen(model_.plan, 1, TapPoint::kMlp));
    // The plan with the adapters before a site, and the original blocks from there on.
    DepthPlan plan = result.corrected;  // 0, 1 attention, adapter, 2, adapter, 3 mlp, 4 attention, adapter, 5
    plan.stages[4] = BlockStage{3};
    plan.stages.erase(plan.stages.begin() + 5);
    plan.stages[5] = BlockStage{4};
    plan.stages.erase(plan.stages.begin() + 6);
    ASSERT_EQ(plan.stages.size(), 7u);
    const Matrix<float> third = Seen(plan, 3, TapPoint::kInput);
    ExpectAdapter(*adapters[1], third,
                  mode == Calibration::kDrift ? Minus(Before(7), third) : Seen(plan, 3, TapPoint::kAttention));
    plan = result.corrected;
    plan.stages[6] = BlockStage{4};
    plan.stages.erase(plan.stages.begin() + 7);
    const Matrix<float> fourth = Plus(Seen(plan, 4, TapPoint::kInput), Seen(plan, 4, TapPoint::kAttention));
    ExpectAdapter(*adapters[2], fourth,
                  mode == Calibration::kDrift ? Minus(Before(10), fourth) : Seen(plan, 4, TapPoint::kMlp));
  }
}

TEST_F(HalvesOfBlocks, RefitChangesTheLastProjectionBeforeTheRun) {
  const ShiftResult result = Run(Options("refit", "layers=2.attn,4.mlp"));
  ASSERT_EQ(result.corrected.stages.size(), 6u);
  EXPECT_EQ(result.sites[1].name, "4.mlp");
  const Matrix<double> down =
      LeastSquares(Widen(Seen(model_.plan, 1, TapPoint::kActivation)), Widen(Minus(Before(5), Before(4))), kLambda);
  ExpectChange(Own(result.corrected, 1)->down, Old(1).down, down);
  EXPECT_EQ(Floats(Own(result.corrected, 1)->o), Floats(Old(1).o));
  // The attention of block 4 carries what its MLP added: on the corrected stream, towards the original one.
  DepthPlan plan = result.corrected;
  plan.stages[4] = BlockStage{4, kAttn};
  const Matrix<double> output = LeastSquares(Widen(Seen(plan, 4, TapPoint::kHeads)),
                                             Widen(Minus(Before(10), Seen(plan, 4, TapPoint::kOutput))), kLambda);
  ExpectChange(Own(result.corrected, 4)->o, Old(4).o, output);
  EXPECT_EQ(Floats(Own(result.corrected, 4)->down), Floats(Old(4).down));
  EXPECT_EQ(result.corrected.Parameters(*model_.weights), result.pruned.Parameters(*model_.weights));
}

TEST_F(HalvesOfBlocks, JointFitsThatProjectionAndAnAdapter) {
  const ShiftResult result = Run(Options("joint", "layers=2.mlp-3.attn"));
  ASSERT_EQ(result.corrected.Adapters().size(), 1u);
  const AdapterStage& adapter = *result.corrected.Adapters().front();
  EXPECT_EQ(adapter.parts, (Parts{{2, kMlp}, {3, kAttn}}));
  const Matrix<float> out = Before(5), inputs = Concatenated(out, Seen(model_.plan, 2, TapPoint::kHeads));
  const AffineMap map = WeightedRidge(inputs, Minus(Before(7), out), std::vector<double>(kTokens, 1.0), kLambda);
  Matrix<double> a(kWidth, kWidth);
  std::copy_n(map.a.data(), kWidth * kWidth, a.data());
  EXPECT_LT(RelativeError(DenseMap(context_, *adapter.lra).span(), a.span()), 1e-4);
  // out + out A + a B + b is what block and adapter run.
  std::vector<double> expected;
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t j = 0; j < kWidth; ++j) {
      double sum = out(t, j) + map.b(0, j);
      for (int64_t i = 0; i < inputs.cols(); ++i) sum += static_cast<double>(inputs(t, i)) * map.a(i, j);
      expected.push_back(sum);
    }
  EXPECT_LT(RelativeError(Doubles(Seen(result.corrected, 3, TapPoint::kInput).span()), expected), 1e-4);
}

TEST_F(HalvesOfBlocks, HealingFitsWhatRunsAfterTheFirstRemovedHalf) {
  calibration_.heldout.clear();  // random text would decide whether the healed projections stay
  Recipe options = Options("lra", "layers=2.attn,4.mlp");
  options.heal = Heal::kAll;
  const ShiftResult healed = Run(options);
  std::string fits;
  for (const FitReport& fit : healed.healed) fits += fmt::format("{} {} ", fit.name, fit.part);
  EXPECT_EQ(fits, "2 down 3 o 3 down 4 o 5 o 5 down ");
  const Matrix<double> down = LeastSquares(
      Widen(Seen(Run(Options("lra", "layers=2.attn,4.mlp")).corrected, 2, TapPoint::kActivation)),
      Widen(Minus(Before(6), Seen(Run(Options("lra", "layers=2.attn,4.mlp")).corrected, 2, TapPoint::kOutput))),
      kLambda);
  ExpectChange(Own(healed.corrected, 2)->down, Old(2).down, down);
  options.correction = "refit";
  const ShiftResult both = Run(options);
  fits.clear();
  for (const FitReport& fit : both.healed) fits += fmt::format("{} {} ", fit.name, fit.part);
  EXPECT_EQ(fits, "2 down 3 o 3 down 5 o 5 down ") << "o of block 4 is fitted for the run";
}

TEST_F(HalvesOfBlocks, NeighboursAreMergedAndGated) {
  Recipe options = Options("lra", "layers=2.mlp,3.attn,5");
  options.merge = Merge::kFull;
  options.gate = true;
  options.rank = RankSpec::Fixed(2);
  const ShiftResult result = Run(options);
  ASSERT_EQ(result.gate.size(), 3u);
  EXPECT_EQ(Names(result.gate[0].parts), "2.mlp");
  EXPECT_EQ(Names(result.gate[1].parts), "3.attn");
  options.gate = false;
  const ShiftResult merged = Run(options);
  ASSERT_EQ(merged.merged->Adapters().size(), 2u);
  EXPECT_EQ(merged.merged->Adapters()[0]->parts, (Parts{{2, kMlp}, {3, kAttn}}));
  ASSERT_EQ(merged.merged_runs.size(), 1u);
  EXPECT_EQ(merged.merged_runs[0].name, "2.mlp-3.attn");
  EXPECT_LT(RelativeError(Doubles(Seen(*merged.merged, kLayers, TapPoint::kInput).span()),
                          Doubles(Seen(merged.corrected, kLayers, TapPoint::kInput).span())),
            1e-5);
}

TEST_F(HalvesOfBlocks, AreSavedAndOpenedWithTheirAdapters) {
  const ShiftResult result = Run(Options("joint", "layers=2.mlp-3.attn,5"));
  for (const bool with_weights : {false, true}) {
    const auto directory = directory_ / (with_weights ? "whole" : "saved");
    SaveAdapted(model_, result.corrected, Provenance(), with_weights, directory);
    const Model opened = OpenAdapted(directory, {});
    EXPECT_EQ(opened.plan.Adapters()[0]->parts, (Parts{{2, kMlp}, {3, kAttn}}));
    EXPECT_EQ(opened.removed, (std::vector<int64_t>{5}));
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), result.corrected.Parameters(*model_.weights));
    Decoder before(context_, model_.weights, result.corrected), after(context_, opened.weights, opened.plan);
    const Batch& batch = calibration_.heldout.front();
    const Matrix<float> expected = before.Logits(before.Forward(batch)), found = after.Logits(after.Forward(batch));
    EXPECT_EQ(Doubles(found.span()), Doubles(expected.span()));
  }
}

TEST_F(HalvesOfBlocks, SavedSumsGiveTheSameFit) {
  Recipe options = Options("lra", "layers=2.attn,4");
  const ShiftResult fresh = Run(options);
  options.gram.save = directory_ / "halves.gram";
  EXPECT_EQ(Run(options).corrected.Fingerprint(), fresh.corrected.Fingerprint());
  options.gram = {.load = {directory_ / "halves.gram"}, .save = {}};
  EXPECT_EQ(Run(options).corrected.Fingerprint(), fresh.corrected.Fingerprint());
  options.prune = ParsePrune("layers=2.mlp");
  EXPECT_THROW(Run(options), Error) << "there are sums of 2.attn and 4";
}

TEST_F(HalvesOfBlocks, ASweepFitsThemAsARunDoes) {
  SweepAxes axes;
  axes.prunes = ParsePruneList("reverse:3,unit=half,layers=2.attn,4,reverse:1", "2");
  axes.ranks = {RankSpec::Fixed(4)};
  axes.samples = {32};
  NoProgress progress;
  std::vector<SweepRow> rows;
  SweepSource source;
  source.open = [&](uint64_t, int64_t) { return MakeCalibration(4, 32); };
  std::vector<std::string> measured;
  source.measure = [&](const DepthPlan& plan) {
    measured.push_back(plan.Fingerprint());
    return Quality{1.0};
  };
  source.row = [&](const SweepRow& row) { rows.push_back(row); };
  Sweep({context_, model_, progress}, axes, source);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(Names(rows[0].removed), "4.mlp, 5");
  EXPECT_EQ(Names(rows[1].removed), "2.attn, 4");
  EXPECT_EQ(Names(rows[2].removed), "5");
  EXPECT_EQ(rows[0].parameters, 2 * (2 * 4 * kWidth + kWidth));
  axes.corrections = {"laco"};
  EXPECT_THROW(Sweep({context_, model_, progress}, axes, source), UsageError);
}

TEST_F(HalvesOfBlocks, WhatIsNotDefinedForThemIsRefused) {
  for (const char* correction : {"replaceme", "laco"})
    EXPECT_THROW(Run(Options(correction, "reverse:3,unit=half")), UsageError) << correction;
  Recipe options = Options("lra", "reverse:3,unit=half");
  options.gram = {.load = {}, .save = directory_ / "all.gram", .all_layers = true};
  EXPECT_THROW(Run(options), UsageError);
  EXPECT_THROW(Run(Options("refit", "layers=0.attn")), UsageError) << "nothing runs before it";
  EXPECT_NO_THROW(Run(Options("refit", "layers=0.mlp")));
  EXPECT_NO_THROW(Run(Options("auto", "layers=2.attn,4.mlp")));
}

}  // namespace
}  // namespace shiftrt
