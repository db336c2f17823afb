// SPDX-License-Identifier: Apache-2.0
// What is fitted again in kept blocks (refit, joint, healing) against definitions written down on the tokens.
#include <algorithm>
#include <cmath>

#include "runtime/check.h"
#include "shift/pipeline.h"
#include "shift/refit/fold.h"
#include "tests/engine/rows.h"
#include "tests/models/fixtures.h"
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

double SquaresOf(const Matrix<float>& m) {
  double sum = 0;
  for (const float value : m.span()) sum += static_cast<double>(value) * value;
  return sum;
}

// R2 of a fit towards `missing` that leaves `left`: 1 - |left|^2 / |missing - its mean row|^2.
double RSquaredOf(const Matrix<float>& missing, const Matrix<float>& left) {
  double of_mean = 0;
  for (int64_t j = 0; j < missing.cols(); ++j) {
    double sum = 0;
    for (int64_t t = 0; t < missing.rows(); ++t) sum += missing(t, j);
    of_mean += sum * sum / static_cast<double>(missing.rows());
  }
  return 1 - SquaresOf(left) / (SquaresOf(missing) - of_mean);
}

class Refit : public test::SmallFits {
 protected:
  static constexpr int64_t kInner = 24;

  Refit() { calibration_ = MakeCalibration(4, 32); }

  Matrix<float> Stream(const DepthPlan& plan, int64_t layer) { return Seen(plan, layer, TapPoint::kInput); }
  Matrix<float> Output(const DepthPlan& plan, int64_t layer) { return Seen(plan, layer, TapPoint::kOutput); }
  Matrix<float> AfterAttention(const DepthPlan& plan, int64_t layer) {
    Matrix<float> sum = Stream(plan, layer);
    const Matrix<float> update = Seen(plan, layer, TapPoint::kAttention);
    for (int64_t i = 0; i < sum.size(); ++i) sum.data()[i] += update.data()[i];
    return sum;
  }
  Batch GreedyText(const DepthPlan& plan) const {
    Decoder decoder(context_, model_.weights, plan);
    std::vector<int32_t> tokens = {1};
    Batch text;
    while (tokens.size() < 32) {
      Batch batch;
      batch.Add(tokens);
      const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
      const float* const last = logits.data() + (logits.rows() - 1) * logits.cols();
      tokens.push_back(static_cast<int32_t>(std::max_element(last, last + logits.cols()) - last));
    }
    text.Add(tokens);
    return text;
  }
};

TEST_F(Refit, IsRidgeOfTheMissingStreamOnTheActivationsAroundTheOldWeights) {
  const ShiftResult result = Run(Options("refit", "layers=2,3,5"));
  ASSERT_EQ(result.corrected.stages.size(), 3u);
  ASSERT_EQ(result.sites.size(), 2u);
  EXPECT_EQ(result.sites[0].name, "2-3");
  EXPECT_TRUE(result.healed.empty());
  // Until block 4, and so until its own fit, the plan is one with the first fit in place.
  DepthPlan before = result.corrected;
  before.stages[2] = BlockStage{4};
  const auto expect = [&](const DepthPlan& plan, int64_t layer, int64_t after, const FitReport& report) {
    const Matrix<float> missing = Minus(Stream(model_.plan, after), Output(plan, layer)),
                        activation = Seen(plan, layer, TapPoint::kActivation);
    const Matrix<double> change = LeastSquares(Widen(activation), Widen(missing), kLambda);
    ExpectChange(Own(result.corrected, layer)->down, Old(layer).down, change, 1e-4);
    EXPECT_EQ(Floats(Own(result.corrected, layer)->o), Floats(Old(layer).o));
    // R2 is of the missing stream, and what is left is less than was missing.
    const Matrix<float> left = Minus(Stream(model_.plan, after), Output(result.corrected, layer));
    EXPECT_LT(SquaresOf(left), SquaresOf(missing));
    EXPECT_NEAR(report.r2_fit, RSquaredOf(missing, left), 1e-4);
    EXPECT_EQ(report.tokens, kTokens);
  };
  expect(model_.plan, 1, 4, result.sites[0]);
  expect(before, 4, 6, result.sites[1]);
  EXPECT_EQ(Decoder(context_, model_.weights, result.corrected).Parameters(),
            Decoder(context_, model_.weights, result.pruned).Parameters())
      << "the architecture stays stock";
}

constexpr const char* kParallel = R"("architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2",
    "layer_norm_eps": 1e-5, "hidden_act": "silu", "sliding_window": 8, "sliding_window_pattern": 2,)";
constexpr const char* kUngated = R"("architectures": ["NemotronForCausalLM"], "model_type": "nemotron",
    "norm_eps": 1e-5, "hidden_act": "relu2",)";

// The MLP of a parallel block reads the stream before the attention, and its output is missing less than that of the
// block.
TEST_F(Refit, OfAParallelBlockAndOfAnMlpWithoutGateIsTheSameRidge) {
  for (const char* family : {kParallel, kUngated}) {
    SCOPED_TRACE(family);
    model_ = MakeModel(3, family);
    const ShiftResult result = Run(Options("refit", "layers=2,3"));
    const Matrix<float> missing = Minus(Stream(model_.plan, 4), Output(model_.plan, 1)),
                        activation = Seen(model_.plan, 1, TapPoint::kActivation);
    const Matrix<double> change = LeastSquares(Widen(activation), Widen(missing), kLambda);
    ExpectChange(Own(result.corrected, 1)->down, Old(1).down, change, 1e-4);
    EXPECT_LT(SquaresOf(Minus(Stream(model_.plan, 4), Output(result.corrected, 1))), SquaresOf(missing));
    EXPECT_GT(Run(Options("joint", "layers=2,3")).sites[0].r2_fit, result.sites[0].r2_fit);
    EXPECT_GT(Run(Options("lra", "layers=2,3")).sites[0].r2_fit, 0);
    Recipe heals = Options("none", "layers=2,3");
    heals.heal = Heal::kDown;
    EXPECT_EQ(Run(heals).healed.size(), 2u);  // blocks 4 and 5
  }
}

TEST_F(Refit, HalvesOfParallelBlocksAndTheirOutputProjectionsAreRefused) {
  model_ = MakeModel(3, kParallel);
  const auto refusal = [&](const Recipe& options) -> std::string {
    try {
      Run(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  for (const char* prune : {"layers=2.mlp", "reverse:3,unit=half"})
    EXPECT_NE(refusal(Options("none", prune)).find("parallel blocks"), std::string::npos) << prune;
  Recipe heals = Options("none", "layers=2");
  heals.heal = Heal::kAll;
  EXPECT_NE(refusal(heals).find("choose down"), std::string::npos) << refusal(heals);
  model_ = MakeModel(3, kUngated);
  EXPECT_EQ(refusal(heals) + refusal(Options("none", "layers=2.mlp")), "");
}

TEST_F(Refit, JointIsRidgeOnOutputAndActivationsAndRunsAsTheBlockAndAnAdapter) {
  const ShiftResult result = Run(Options("joint", "layers=2,3"));
  ASSERT_EQ(result.corrected.stages.size(), 5u);
  const AdapterStage& adapter = result.corrected.stages[2].adapter();
  EXPECT_EQ(adapter.parts, (std::vector<BlockPart>{2, 3}));
  const Matrix<float> out = Output(model_.plan, 1), activation = Seen(model_.plan, 1, TapPoint::kActivation),
                      missing = Minus(Stream(model_.plan, 4), out), inputs = Concatenated(out, activation);
  const AffineMap map = WeightedRidge(inputs, missing, std::vector<double>(kTokens, 1.0), kLambda);
  Matrix<double> a(kWidth, kWidth);
  std::copy_n(map.a.data(), kWidth * kWidth, a.data());
  EXPECT_LT(RelativeError(DenseMap(context_, *adapter.lra).span(), a.span()), 1e-4);
  EXPECT_LT(RelativeError(Doubles(adapter.lra->b.span()), map.b.span()), 1e-4);
  // out + out A + a B + b, by the plan.
  const Matrix<float> found = Stream(result.corrected, 4);
  std::vector<double> expected;
  double residual = 0, total = 0;
  Matrix<double> mean = Matrix<double>::Zeros(1, kWidth);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t j = 0; j < kWidth; ++j) mean(0, j) += missing(t, j) / static_cast<double>(kTokens);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t j = 0; j < kWidth; ++j) {
      double added = map.b(0, j);
      for (int64_t i = 0; i < inputs.cols(); ++i) added += inputs(t, i) * map.a(i, j);
      expected.push_back(out(t, j) + added);
      residual += std::pow(missing(t, j) - added, 2);
      total += std::pow(missing(t, j) - mean(0, j), 2);
    }
  EXPECT_LT(RelativeError(Doubles(found.span()), expected), 1e-4);
  EXPECT_NEAR(result.sites[0].r2_fit, 1 - residual / total, 1e-4);
}

// The joint map has the lowest penalised error of all maps of that rank, with B and b free: any step away from it
// costs.
TEST_F(Refit, JointOfLowRankIsTheBestOfItsRank) {
  constexpr int64_t kRank = 3;
  Recipe options = Options("joint", "layers=2");
  options.rank = RankSpec::Fixed(kRank);
  const ShiftResult result = Run(options);
  const Lra& lra = *result.corrected.Adapters().front()->lra;
  ASSERT_EQ(lra.rank(), kRank);
  EXPECT_EQ(result.sites[0].singular_values.size(), size_t{kWidth});
  const Matrix<float> out = Output(model_.plan, 1), activation = Seen(model_.plan, 1, TapPoint::kActivation),
                      missing = Minus(Stream(model_.plan, 3), out);
  // B of the block's change: (W' - W)' (I + A).
  const Matrix<double> a = DenseMap(context_, lra);
  const std::vector<float> now = Floats(Own(result.corrected, 1)->down), old = Floats(Old(1).down);
  Matrix<double> b(kInner, kWidth);
  for (int64_t i = 0; i < kInner; ++i)
    for (int64_t j = 0; j < kWidth; ++j) {
      b(i, j) = static_cast<double>(now[j * kInner + i]) - old[j * kInner + i];
      for (int64_t k = 0; k < kWidth; ++k)
        b(i, j) += (static_cast<double>(now[k * kInner + i]) - old[k * kInner + i]) * a(k, j);
    }
  const auto cost = [&](const Matrix<double>& p, const Matrix<double>& q, const Matrix<double>& slope,
                        const Matrix<double>& bias) {
    const Matrix<double> map = test::Product(p, q);
    double sum = 0;
    for (const Matrix<double>* m : {&map, &slope})
      for (const double value : m->span()) sum += kLambda * value * value;
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t j = 0; j < kWidth; ++j) {
        double left = missing(t, j) - bias(0, j);
        for (int64_t i = 0; i < kWidth; ++i) left -= out(t, i) * map(i, j);
        for (int64_t i = 0; i < kInner; ++i) left -= activation(t, i) * slope(i, j);
        sum += left * left;
      }
    return sum;
  };
  const Matrix<double> p = Widen(lra.p), q = Widen(lra.q), bias = Widen(lra.b);
  const double least = cost(p, q, b, bias);
  Random random(5);
  for (int trial = 0; trial < 12; ++trial) {
    const auto stepped = [&](const Matrix<double>& m) {
      Matrix<double> out = m.Clone();
      for (double& value : out.span()) value += 0.03 * (random.Uniform() - 0.5);
      return out;
    };
    EXPECT_GT(cost(stepped(p), stepped(q), stepped(b), stepped(bias)), least * (1 - 1e-6));
  }
  options.rank = RankSpec::Full();
  EXPECT_LE(result.sites[0].r2_fit, Run(options).sites[0].r2_fit + 1e-6);
}

TEST_F(Refit, ALargeLambdaLeavesTheWeights) {
  for (const char* correction : {"refit", "joint"}) {
    Recipe options = Options(correction, "layers=2,4");
    options.heal = Heal::kAll;
    options.lambda.value = 1e30;
    const ShiftResult result = Run(options);
    EXPECT_EQ(result.healed.size(), 3u);  // o of block 3, which is fitted for the run after it; o and down of block 5
    for (const int64_t layer : {1, 3, 5}) {
      for (const auto member : {&BlockWeights::o, &BlockWeights::down}) {
        const std::vector<float> now = Floats((*Own(result.corrected, layer)).*member),
                                 old = Floats(Old(layer).*member);
        for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], old[i], 1e-20) << correction;
      }
    }
    for (const AdapterStage* adapter : result.corrected.Adapters())
      for (const float value : adapter->lra->a.span()) EXPECT_LT(std::abs(value), 1e-20);
  }
}

TEST_F(Refit, HealingFitsOutputThenDownTowardsTheOriginalStreamInTheOrderOfDepth) {
  calibration_.heldout.clear();  // random text would decide whether the healed projections stay
  Recipe options = Options("lra", "layers=1");
  const ShiftResult fitted = Run(options);
  options.heal = Heal::kAll;
  const ShiftResult healed = Run(options);
  ASSERT_EQ(healed.healed.size(), 8u);
  ASSERT_EQ(healed.corrected.stages.size(), 6u);
  DepthPlan plan = fitted.corrected;
  size_t report = 0;
  for (const int64_t layer : {2, 3, 4, 5}) {
    const auto own = Own(healed.corrected, layer);
    // Return what the plan's stream lacks after each half of the block.
    const auto missing_after_attention = [&] {
      return Minus(AfterAttention(model_.plan, layer), AfterAttention(plan, layer));
    };
    const auto missing_after_block = [&] { return Minus(Stream(model_.plan, layer + 1), Output(plan, layer)); };
    const Matrix<float> of_output = missing_after_attention();
    const Matrix<double> output = LeastSquares(Widen(Seen(plan, layer, TapPoint::kHeads)), Widen(of_output), kLambda);
    ExpectChange(own->o, Old(layer).o, output, 1e-3);
    auto half = std::make_shared<BlockWeights>(*own);
    half->down = Old(layer).down;
    plan.stages[layer] = BlockStage{.layer = layer, .own = half};
    EXPECT_EQ(healed.healed[report].part, "o");
    EXPECT_NEAR(healed.healed[report++].r2_fit, RSquaredOf(of_output, missing_after_attention()), 1e-4);
    const Matrix<float> of_down = missing_after_block();
    const Matrix<double> down = LeastSquares(Widen(Seen(plan, layer, TapPoint::kActivation)), Widen(of_down), kLambda);
    ExpectChange(own->down, Old(layer).down, down, 1e-3);
    plan.stages[layer] = BlockStage{.layer = layer, .own = own};
    EXPECT_EQ(healed.healed[report].part, "down");
    EXPECT_NEAR(healed.healed[report++].r2_fit, RSquaredOf(of_down, missing_after_block()), 1e-4);
  }
  EXPECT_EQ(healed.corrected.stages[0].block().own, nullptr) << "before the first removed block";
  EXPECT_LT(SquaresOf(Minus(Stream(model_.plan, kLayers), Stream(healed.corrected, kLayers))),
            SquaresOf(Minus(Stream(model_.plan, kLayers), Stream(fitted.corrected, kLayers))));
  // The adapters are those of the fit without healing.
  EXPECT_EQ(Doubles(healed.corrected.stages[1].adapter().lra->a.span()),
            Doubles(fitted.corrected.stages[1].adapter().lra->a.span()));
  options.heal = Heal::kDown;
  const ShiftResult down = Run(options);
  EXPECT_EQ(down.healed.size(), 4u);
  for (const int64_t layer : {2, 3, 4, 5}) {
    EXPECT_EQ(Floats(Own(down.corrected, layer)->o), Floats(Old(layer).o));
    EXPECT_NE(Floats(Own(down.corrected, layer)->down), Floats(Old(layer).down));
  }
}

// No plan is likely to predict the greedy text of another plan better than that does: held-out text of one or the other
// decides whether the projections that were fitted again stay.
TEST_F(Refit, HealingThatRaisesTheHeldOutLossIsNotApplied) {
  for (const char* correction : {"lra", "refit"}) {
    SCOPED_TRACE(correction);
    Recipe options = Options(correction, "layers=2");
    calibration_.heldout.clear();
    const ShiftResult bare = Run(options);
    options.heal = Heal::kAll;
    const ShiftResult healed = Run(options);
    EXPECT_FALSE(healed.healing.has_value()) << "there is nothing to measure on";
    EXPECT_NE(healed.corrected.Fingerprint(), bare.corrected.Fingerprint());
    for (const auto* favoured : {&bare, &healed}) {
      calibration_.heldout = {GreedyText(favoured->corrected)};
      const ShiftResult result = Run(options);
      ASSERT_TRUE(result.healing.has_value());
      EXPECT_EQ(result.healed.size(), healed.healed.size());
      EXPECT_EQ(result.healing->parts, (std::vector<BlockPart>{3, 4, 5}));
      EXPECT_EQ(result.healing->kept, favoured == &healed);
      EXPECT_EQ(result.healing->with < result.healing->without, favoured == &healed);
      EXPECT_EQ(result.corrected.Fingerprint(), favoured->corrected.Fingerprint());
    }
  }
}

TEST_F(Refit, HealingChangesNothingWhereNothingIsMissing) {
  NoProgress progress;
  const ShiftJob job = {context_, model_, calibration_, progress};
  const SequentialFitResult fitted =
      RefitInSequence(job, model_.plan, {1}, {nullptr, Heal::kAll, {{LambdaSpec::Kind::kAbsolute, kLambda}}, {}});
  EXPECT_EQ(fitted.healed.size(), 8u);
  for (const int64_t layer : {2, 3, 4, 5})
    for (const auto member : {&BlockWeights::o, &BlockWeights::down}) {
      const std::vector<float> now = Floats((*Own(fitted.plan, layer)).*member), old = Floats(Old(layer).*member);
      for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], old[i], 1e-5);
    }
}

// A down projection before a run that is left bare makes up for it; one that a correction changed stays.
TEST_F(Refit, HealingAimsAtTheStreamThatTheNextStageReads) {
  calibration_.heldout.clear();  // random text would decide whether the healed projections stay
  Recipe options = Options("none", "layers=1,3");
  options.heal = Heal::kDown;
  const ShiftResult bare = Run(options);
  DepthPlan plan = bare.pruned;
  const Matrix<double> change = LeastSquares(Widen(Seen(plan, 2, TapPoint::kActivation)),
                                             Widen(Minus(Stream(model_.plan, 4), Output(plan, 2))), kLambda);
  ExpectChange(Own(bare.corrected, 2)->down, Old(2).down, change, 1e-4);
  options.correction = "replaceme";
  const ShiftResult folded = Run(options);
  EXPECT_EQ(folded.healed.size(), 2u);  // blocks 4 and 5
}

TEST_F(Refit, TokenWeightsCountInEveryFit) {
  Recipe options = Options("refit", "layers=2");
  options.weighting = ParseTokenWeights("norm,first:0");
  const ShiftResult result = Run(options);
  const Matrix<float> activation = Seen(model_.plan, 1, TapPoint::kActivation), after = Stream(model_.plan, 3),
                      missing = Minus(after, Output(model_.plan, 1));
  Matrix<double> x = Widen(activation), y = Widen(missing);
  for (int64_t t = 0; t < kTokens; ++t) {
    double squares = 0;
    for (int64_t j = 0; j < kWidth; ++j) squares += static_cast<double>(after(t, j)) * after(t, j);
    const double root = t % 32 == 0 ? 0.0 : std::sqrt(kWidth / squares);
    for (int64_t j = 0; j < kInner; ++j) x(t, j) *= root;
    for (int64_t j = 0; j < kWidth; ++j) y(t, j) *= root;
  }
  ExpectChange(Own(result.corrected, 1)->down, Old(1).down, LeastSquares(x, y, kLambda), 1e-3);
}

TEST_F(Refit, LambdaIsChosenAroundTheOldWeights) {
  for (const LambdaSpec::Kind kind : {LambdaSpec::Kind::kGcv, LambdaSpec::Kind::kHoldout, LambdaSpec::Kind::kRelative})
    for (const char* correction : {"refit", "joint"}) {
      Recipe options = Options(correction, "layers=2");
      options.lambda = {kind, 1e-3};
      const ShiftResult result = Run(options);
      EXPECT_GT(result.sites[0].lambda, 0);
      EXPECT_GT(result.sites[0].r2_fit, 0) << correction;
    }
}

// There is no block before layer 0: the run's adapter is a ridge of what is missing on the embeddings.
TEST_F(Refit, JointAtLayerZeroIsAnAdapterAlone) {
  const ShiftResult result = Run(Options("joint", "layers=0,1,4"));
  ASSERT_EQ(result.sites.size(), 2u);
  EXPECT_EQ(result.sites[0].name, "0-1");
  const AdapterStage& adapter = result.corrected.stages[0].adapter();
  EXPECT_EQ(adapter.parts, (std::vector<BlockPart>{0, 1}));
  const DepthPlan original = DepthPlan::Original(kLayers);
  const Matrix<float> in = Stream(original, 0), missing = Minus(Stream(original, 2), in);
  const AffineMap map = WeightedRidge(in, missing, std::vector<double>(kTokens, 1.0), kLambda);
  EXPECT_LT(RelativeError(Doubles(adapter.lra->a.span()), map.a.span()), 1e-4);
  EXPECT_EQ(result.corrected.stages[1].block().own, nullptr) << "block 2 is not before a run";
  EXPECT_NE(result.corrected.stages[2].block().own, nullptr);
  // The next fit reads what the adapter leaves.
  EXPECT_EQ(Run(Options("joint", "layers=0")).corrected.stages.size(), static_cast<size_t>(kLayers));
  EXPECT_THROW(Run(Options("refit", "layers=0,4")), UsageError);
}

TEST_F(Refit, GateTakesOutWhatWasFittedAgain) {
  Recipe options = Options("joint", "layers=2");
  options.heal = Heal::kDown;
  options.gate = true;
  const ShiftResult result = Run(options);
  // Block 1, the adapter, and blocks 3 to 5 if healing stayed.
  EXPECT_EQ(result.gate.size(), result.healing->kept ? 5u : 2u);
}

TEST_F(Refit, RefusesWhatDoesNotFitInMemoryWithTheFormulaAndItsNumbers) {
  context_.memory = 4096;
  try {
    Run(Options("joint", "layers=2"));
    FAIL();
  } catch (const Error& error) {
    for (const char* word : {"n = 40 inputs", "d = 16 outputs", "32 (n + 1) (n + 1 + d) + 40 n^2", "MiB"})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

// Tokens of random inputs (n) and targets, and their sums.
struct Random2 {
  Matrix<float> inputs, target;
};

Random2 MakePairs(int64_t tokens, int64_t inputs, int64_t outputs) {
  Random random(9);
  Random2 made{Matrix<float>(tokens, inputs), Matrix<float>(tokens, outputs)};
  for (Matrix<float>* m : {&made.inputs, &made.target})
    for (float& value : m->span()) value = static_cast<float>(random.Uniform() - 0.3);
  return made;
}

TEST(RefitProjection, FitsABiasWhereTheBlockHasOneAndKeepsTheType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto weights = GoldenWeights("llama_bias", dtype);
    const int64_t d = weights->config.hidden;
    const BlockPtr block = {weights, &weights->blocks[1]};
    for (const Projection& projection : {kOutputProjection, kDownProjection}) {
      const int64_t n = projection.Inputs(weights->config);
      ASSERT_FALSE(((*block).*projection.bias).empty());
      const Random2 tokens = MakePairs(300, n, d);
      SiteSums sums({1}, SiteInput::kActivation, {n, d});
      sums.fit.Add(Context(), tokens.inputs.view(), tokens.target.view());
      const RefittedBlock refitted =
          RefitProjection(Context(), sums, {{LambdaSpec::Kind::kAbsolute, 0.5}, false}, projection, block);
      const AffineMap map = WeightedRidge(tokens.inputs, tokens.target, std::vector<double>(300, 1.0), 0.5);
      const TensorView &weight = (*refitted.block).*projection.weight, &bias = (*refitted.block).*projection.bias;
      EXPECT_EQ(weight.dtype, dtype);
      EXPECT_EQ(bias.dtype, dtype);
      const double tolerance = dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 2e-2 : 0.1;
      EXPECT_LT(RelativeError(ChangeOf(projection, *block, *refitted.block).span(), map.a.span()), tolerance);
      const Matrix<double> now = InFloat64(bias), old = InFloat64((*block).*projection.bias);
      for (int64_t j = 0; j < d; ++j) EXPECT_NEAR(now.data()[j] - old.data()[j], map.b(0, j), tolerance);
      EXPECT_TRUE(std::isnan(refitted.report.r2_heldout));
    }
  }
}

// A target of -out asks for A = -I: no projection before such an adapter can do anything.
TEST(Joint, RaisesLambdaWhereTheAdapterWouldBeSingularAndSaysSo) {
  const auto weights = GoldenWeights("llama3_tied");
  const int64_t d = weights->config.hidden, n = d + weights->config.intermediate;
  Random2 tokens = MakePairs(3 * n, n, d);
  for (int64_t t = 0; t < tokens.inputs.rows(); ++t)
    for (int64_t j = 0; j < d; ++j) tokens.target(t, j) = -tokens.inputs(t, j);
  // One direction comes back, so that I + A is not the zero matrix, which has no condition.
  for (int64_t t = 0; t < tokens.inputs.rows(); ++t) tokens.target(t, 0) = tokens.inputs(t, 1);
  SiteSums sums({2}, SiteInput::kStreamAndActivation, {n, d});
  sums.fit.Add(Context(), tokens.inputs.view(), tokens.target.view());
  FitOptions options;
  options.rank = RankSpec::Full();
  options.ridge.lambda = {LambdaSpec::Kind::kAbsolute, 1e-9};
  Model model;
  model.weights = weights;
  const CalibrationSet none;
  NoProgress progress;
  const Context context;
  const ShiftJob job = {context, model, none, progress};
  const FittedSites fitted = FindCorrection("joint").fit(
      {job, {sums.site}, {&sums}, options, &kDownProjection, BlockPtr(weights, &weights->blocks[1])});
  EXPECT_GT(fitted.reports[0].lambda, 1e-9);
  EXPECT_NE(fitted.reports[0].warning.find("near singular"), std::string::npos) << fitted.reports[0].warning;
  const Matrix<double> down = InFloat64(fitted.own[0].own->down);
  for (const double value : down.span()) EXPECT_TRUE(std::isfinite(value));
}

TEST(Heal, ReadsAndWrites) {
  for (const char* text : {"off", "down", "all"}) EXPECT_STREQ(Name(ParseHeal(text)), text);
  EXPECT_THROW(ParseHeal("some"), UsageError);
}

}  // namespace
}  // namespace shiftrt
