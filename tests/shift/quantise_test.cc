// SPDX-License-Identifier: Apache-2.0
// Rounding of a model to types of fewer bits, alone and together with a cut.
#include "shift/quantise/quantise.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "engine/loss.h"
#include "models/adapted.h"
#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "shift/pipeline.h"
#include "shift/quantise/mixture.h"
#include "shift/quantise/round_matrix.h"
#include "tests/models/mlp_units.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

const BlockTensor& RowOf(TensorView BlockWeights::*member) {
  for (const BlockTensor& row : BlockTensors())
    if (row.member == member) return row;
  Fail("no such tensor");
}

// Source of the layers: Q4_K_M files of models with 28 and 24 blocks, as llama.cpp writes them.
TEST(Mixtures, GiveMoreBitsWhereLlamaCppDoes) {
  ModelConfig config;
  config.hidden = 1536;
  config.intermediate = 8960;
  const auto type = [&](const char* mixture, TensorView BlockWeights::*member, int64_t i, int64_t blocks) {
    const BlockTensor& row = RowOf(member);
    return TypeIn(FindMixture(mixture), row, i, blocks, Size(config, row.input));
  };
  const auto more = [&](int64_t blocks) {
    std::vector<int64_t> layers;
    for (int64_t i = 0; i < blocks; ++i)
      if (type("q4_k_m", &BlockWeights::down, i, blocks) == BlockType::kQ6_K) layers.push_back(i);
    return layers;
  };
  EXPECT_EQ(more(28), (std::vector<int64_t>{0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}));
  EXPECT_EQ(more(24), (std::vector<int64_t>{0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23}));
  EXPECT_EQ(type("q4_k_m", &BlockWeights::up, 0, 28), BlockType::kQ4_K);
  EXPECT_EQ(type("q3_k_m", &BlockWeights::v, 0, 28), BlockType::kQ5_K);
  EXPECT_EQ(type("q3_k_m", &BlockWeights::v, 2, 28), BlockType::kQ4_K);
  for (const auto& [index, down] : {std::pair{0, BlockType::kQ5_K}, {2, BlockType::kQ4_K}, {6, BlockType::kQ4_K}})
    EXPECT_EQ(type("q3_k_m", &BlockWeights::down, index, 28), down);
  EXPECT_EQ(HeadTypeIn(FindMixture("q2_k"), config), BlockType::kQ6_K);
  config.hidden = 896;  // no whole super-blocks
  EXPECT_EQ(type("q4_k_m", &BlockWeights::up, 0, 24), BlockType::kQ5_0);
  EXPECT_EQ(HeadTypeIn(FindMixture("q4_k_m"), config), BlockType::kQ8_0);
  config.hidden = 80;  // no whole blocks: the matrix stays
  EXPECT_EQ(type("q4_k_m", &BlockWeights::up, 0, 24), BlockType::kF32);
  EXPECT_THROW(FindMixture("q4_k_x"), UsageError);
}

TEST(QuantiseSpecs, HaveWords) {
  EXPECT_EQ(Format(ParseQuantise("q4_k_m")), Format(QuantiseSpec{"q4_k_m"}));
  for (const char* words : {"off", "q8_0,nearest,before", "q3_k_m,feedback,after", "q2_k,importance,before"})
    EXPECT_EQ(Format(ParseQuantise(words)), words);
  for (const char* words : {"", "q9", "q4_k_m,", "q4_k_m,best", "off,after"})
    EXPECT_THROW(ParseQuantise(words), UsageError) << words;
}

// Inputs that depend on each other, as activations do.
Matrix<float> Inputs(int64_t tokens, int64_t width, uint64_t seed) {
  Random random(seed);
  Matrix<float> x(tokens, width);
  for (int64_t t = 0; t < tokens; ++t) {
    const double common = random.Normal();
    for (int64_t j = 0; j < width; ++j)
      x(t, j) = static_cast<float>((j % 7 == 0 ? 4 : 1) * (0.8 * common + random.Normal()));
  }
  return x;
}

class RoundedMatrices : public testing::Test {
 protected:
  static constexpr int64_t kOutputs = 33, kInputs = 320, kTokens = 2000;

  RoundedMatrices() : x_(Inputs(kTokens, kInputs, 1)), w_(kOutputs, kInputs) {
    Random random(2);
    for (float& value : w_.span()) value = static_cast<float>(0.05 * random.Normal());
  }
  Matrix<float> Root() {
    InputGram gram(kInputs);
    gram.Add(context_, x_.view());
    return gram.TakeRoot(context_);
  }
  RoundedMatrix Round(Rounding rounding, BlockType type = BlockType::kQ4_0) {
    return RoundMatrix(context_, "w", {w_.data(), DType::kFloat32, {kOutputs, kInputs}}, type, Root().view(), rounding);
  }
  // |X (W - Q)'|^2, in float64.
  double ErrorOf(const TensorView& q) const {
    double error = 0;
    ForEachWidenedRow(q, [&](int64_t row, const std::vector<float>& values) {
      for (int64_t t = 0; t < kTokens; ++t) {
        double off = 0;
        for (int64_t j = 0; j < kInputs; ++j) off += static_cast<double>(x_(t, j)) * (w_(row, j) - values[j]);
        error += off * off;
      }
    });
    return error;
  }

  Context context_;
  Matrix<float> x_, w_;
};

TEST_F(RoundedMatrices, TheRootIsThatOfTheGramMatrix) {
  const Matrix<float> root = Root();
  for (const auto& [i, j] : {std::pair{0, 0}, {3, 200}, {319, 319}, {100, 7}}) {
    double gram = 0, product = 0;
    for (int64_t t = 0; t < kTokens; ++t) gram += static_cast<double>(x_(t, i)) * x_(t, j);
    for (int64_t k = 0; k < kInputs; ++k) product += static_cast<double>(root(i, k)) * root(j, k);
    EXPECT_NEAR(product, gram * (i == j ? 1.01 : 1), 2e-4 * std::abs(gram) + 1) << i << " " << j;
    if (i > j) {
      EXPECT_EQ(root(i, j), 0);
    }
  }
}

TEST_F(RoundedMatrices, TheFiguresAreThoseOfTheProducts) {
  const RoundedMatrix rounded = Round(Rounding::kFeedback);
  double size = 0;
  for (int64_t row = 0; row < kOutputs; ++row)
    for (int64_t t = 0; t < kTokens; ++t) {
      double product = 0;
      for (int64_t j = 0; j < kInputs; ++j) product += static_cast<double>(x_(t, j)) * w_(row, j);
      size += product * product;
    }
  EXPECT_NEAR(rounded.size, size, 0.03 * size);
  // The damping counts an error a little more.
  const double error = ErrorOf(rounded.tensor);
  EXPECT_GT(rounded.error, error);
  EXPECT_LT(rounded.error, 1.1 * error);
}

TEST_F(RoundedMatrices, FeedbackErrsLeastAndThenImportance) {
  // In blocks of 32 and of super-blocks, 320 inputs are one panel of 256 and one of 64.
  for (const BlockType type : {BlockType::kQ4_0, BlockType::kQ5_1, BlockType::kQ8_0}) {
    const double nearest = ErrorOf(Round(Rounding::kNearest, type).tensor);
    const double importance = ErrorOf(Round(Rounding::kImportance, type).tensor);
    const double feedback = ErrorOf(Round(Rounding::kFeedback, type).tensor);
    EXPECT_LT(importance, 1.02 * nearest) << TraitsOf(type).name;
    EXPECT_LT(feedback, 0.8 * importance) << TraitsOf(type).name;
  }
}

TEST_F(RoundedMatrices, NumbersThatAreNotFiniteAreRefused) {
  w_(20, 300) = std::numeric_limits<float>::quiet_NaN();
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kImportance, Rounding::kFeedback})
    EXPECT_THROW(Round(rounding), Error) << static_cast<int>(rounding);
  InputGram gram(kInputs);
  x_(3, 3) = std::numeric_limits<float>::infinity();
  gram.Add(context_, x_.view());
  EXPECT_THROW(gram.TakeRoot(context_), Error);
}

TEST_F(RoundedMatrices, TheResultDoesNotDependOnThreads) {
  // The sums of the root are OpenBLAS's, whose order may depend on the threads.
  const Matrix<float> root = Root();
  const TensorView w{w_.data(), DType::kFloat32, {kOutputs, kInputs}};
  const auto bytes = [&](int threads, Rounding rounding) {
    context_.threads = threads;
    const RoundedMatrix rounded = RoundMatrix(context_, "w", w, BlockType::kQ4_0, root.view(), rounding);
    const auto* const data = static_cast<const std::byte*>(rounded.tensor.data);
    return std::vector<std::byte>(data, data + rounded.tensor.bytes());
  };
  for (const Rounding rounding : {Rounding::kImportance, Rounding::kFeedback})
    EXPECT_EQ(bytes(1, rounding), bytes(2, rounding)) << static_cast<int>(rounding);
}

// A model whose rows are whole blocks of 32, but for those of the attention's output projection.
class QuantisedModel : public test::SmallModel {
 protected:
  explicit QuantisedModel(bool tied = false) {
    std::ofstream(directory_ / "wide.json")
        << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-6, "hidden_act": "silu",
               "hidden_size": 32, "vocab_size": 64, "intermediate_size": 64, "num_hidden_layers": 6,
               "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
               "rope_theta": 10000.0, "torch_dtype": "float32", "tie_word_embeddings": )"
        << (tied ? "true" : "false") << "}";
    const std::filesystem::path place = directory_ / "wide";
    WriteRandomCheckpoint(directory_ / "wide.json", DType::kFloat32, 5, place);
    model_.directory = place;
    model_.weights = LoadWeights(place);
  }
  ShiftResult Run(const std::string& quantise, const std::string& correction, Heal heal = Heal::kOff) {
    Recipe recipe;
    recipe.prune = ParsePrune("layers=2-3");
    recipe.correction = correction;
    recipe.rank = RankSpec::Full();
    recipe.lambda = ParseLambda("0.1rel");
    recipe.mode = correction == "lra" ? Calibration::kDrift : Calibration::kAuto;
    recipe.heal = heal;
    recipe.benefit = Benefit::kMeasured;
    recipe.quantise = ParseQuantise(quantise);
    NoProgress progress;
    return Shift({context_, model_, calibration_, progress}, recipe);
  }
  // Every matrix of the blocks that run has this type. Blocks of this model add as much to the stream as it has, so
  // that last projections may have Q8_0.
  void ExpectTypes(const DepthPlan& plan, DType type) const {
    for (const BlockStage* block : plan.Blocks())
      ForEachTensor(TensorsOf(*model_.weights, *block), block->halves,
                    [&](const BlockTensor& row, const TensorView& tensor) {
                      const bool matrix = row.kind == BlockTensor::Kind::kMatrix;
                      const bool last = row.input == Axis::kHeads || row.input == Axis::kIntermediate;
                      if (matrix && last && tensor.dtype == DType::kQ8_0) return;
                      EXPECT_EQ(tensor.dtype, matrix ? type : DType::kFloat32) << block->layer << " " << row.name;
                    });
    ASSERT_NE(plan.output, nullptr);
    EXPECT_EQ(plan.output->head.dtype, DType::kQ8_0);  // 32 is no multiple of 256
  }
};

TEST_F(QuantisedModel, EveryMatrixHasItsType) {
  for (const char* rounding : {"nearest", "importance", "feedback"}) {
    NoProgress progress;
    const QuantisedPlan rounded = Quantise({context_, model_, calibration_, progress}, DepthPlan::Original(kLayers),
                                           ParseQuantise("q4_0," + std::string(rounding)));
    ExpectTypes(rounded.plan, DType::kQ4_0);
    EXPECT_EQ(rounded.plan.output->table.dtype, DType::kQ4_0);
    EXPECT_EQ(rounded.report.matrices, 6 * 7 + 2) << "the blocks, the head and the embedding table";
    EXPECT_LT(rounded.report.bytes_after, rounded.report.bytes_before / 5);
    EXPECT_EQ(std::isnan(rounded.report.error), std::string(rounding) == "nearest");
    if (std::string(rounding) != "nearest") continue;
    // A matrix that has its type, or fewer bits, stays as it is.
    for (const char* mixture : {"q4_0", "q8_0"}) {
      const QuantisedPlan again =
          Quantise({context_, model_, calibration_, progress}, rounded.plan, ParseQuantise(mixture));
      EXPECT_EQ(again.plan.Fingerprint(), rounded.plan.Fingerprint());
      EXPECT_EQ(again.report.matrices, 0);
      EXPECT_EQ(again.report.bytes_after, rounded.report.bytes_after);
    }
  }
}

// The block before the removed ones has 32 units, one after them 96, and the others 64: the fits, the rounding and the
// counts go by the block.
TEST_F(QuantisedModel, MlpsOfOtherUnitsAreRepairedAndRounded) {
  auto weights = std::make_shared<Weights>(*model_.weights);
  for (const auto& [layer, units] : {std::pair<int64_t, int64_t>{1, 32}, {4, 96}}) {
    const BlockStage changed = WithUnits(*weights, {layer}, units);
    weights->blocks[layer] = *changed.own;
    weights->storage.push_back(changed.own);
  }
  weights->config.intermediate = 96;
  model_.weights = weights;
  for (const char* correction : {"lra", "refit", "joint", "norm-refit"}) {
    SCOPED_TRACE(correction);
    const ShiftResult repaired = Run("q4_0", correction, Heal::kAll);
    ExpectTypes(repaired.corrected, DType::kQ4_0);
    ASSERT_FALSE(repaired.sites.empty());
    for (const FitReport& site : repaired.sites) EXPECT_GT(site.r2_fit, 0.05);
    EXPECT_GE(repaired.healed.size(), 3U);
    for (const BlockStage* block : repaired.corrected.Blocks())
      EXPECT_EQ(MlpUnits(TensorsOf(*weights, *block)), MlpUnits(weights->blocks[block->layer])) << block->layer;
  }
  // 32 and 96 inputs are no blocks of 256, and neither is the hidden size.
  NoProgress progress;
  const QuantisedPlan rounded =
      Quantise({context_, model_, calibration_, progress}, DepthPlan::Original(kLayers), ParseQuantise("q8_0"));
  const DepthPlan original = DepthPlan::Original(kLayers);
  EXPECT_EQ(rounded.report.matrices, 6 * 7 + 2);
  EXPECT_NEAR(static_cast<double>(rounded.report.bytes_after), original.Bytes(*weights) * 8.5 / 32,
              0.03 * static_cast<double>(original.Bytes(*weights)));
}

TEST_F(QuantisedModel, FeedbackStaysCloserToTheModel) {
  std::map<std::string, double> distance;
  for (const char* rounding : {"nearest", "feedback"}) {
    NoProgress progress;
    const DepthPlan plan = Quantise({context_, model_, calibration_, progress}, DepthPlan::Original(kLayers),
                                    ParseQuantise("q4_0," + std::string(rounding)))
                               .plan;
    Decoder exact(context_, model_.weights, DepthPlan::Original(kLayers)), decoder(context_, model_.weights, plan);
    for (const Batch& batch : calibration_.fit) {
      const MatrixView<const float> a = exact.Forward(batch).host(), b = decoder.Forward(batch).host();
      for (int64_t i = 0; i < a.rows; ++i)
        for (int64_t j = 0; j < a.cols; ++j) distance[rounding] += std::pow(a(i, j) - b(i, j), 2);
    }
  }
  EXPECT_LT(distance["feedback"], 0.8 * distance["nearest"]);
}

TEST_F(QuantisedModel, IsRepairedOnTheRoundedStream) {
  for (const char* correction : {"lra", "joint", "refit", "none"}) {
    SCOPED_TRACE(correction);
    const ShiftResult before = Run("q4_0", correction), after = Run("q4_0,after", correction);
    ExpectTypes(before.corrected, DType::kQ4_0);
    ExpectTypes(after.corrected, DType::kQ4_0);
    ASSERT_TRUE(before.quantised && after.quantised);
    const bool repairs = correction != std::string("none");
    EXPECT_EQ(before.pruned.output != nullptr, repairs) << "the repair is compared with the rounded model without it";
    EXPECT_EQ(after.pruned.output, nullptr);
    EXPECT_EQ(before.gain.has_value(), repairs);
    if (correction == std::string("lra")) {
      // Fits to other streams are other adapters.
      EXPECT_NE(before.corrected.Adapters().front()->lra->a(0, 0), after.corrected.Adapters().front()->lra->a(0, 0));
    }
  }
}

// A repair may put the update of many blocks into one projection, whose rounding then changes the stream too much.
TEST_F(QuantisedModel, AProjectionThatMakesTheStreamHasEightBits) {
  NoProgress progress;
  const ShiftJob job = {context_, model_, calibration_, progress};
  // All blocks add little to the stream, but the down projection of block `large`.
  const auto rounded_with = [&](int64_t large, const char* mixture) {
    DepthPlan plan;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const BlockStage block = {layer, Halves::kBoth, {}};
      const auto own = std::make_shared<OwnBlock>(*model_.weights, block);
      for (const auto member : {&BlockWeights::o, &BlockWeights::down}) {
        const TensorView tensor = own->weights().*member;
        const float factor = layer == large && member == &BlockWeights::down ? 1000 : 0.05f;
        const auto scaled = std::make_shared<Matrix<float>>(tensor.rows(), tensor.cols());
        ForEachWidenedRow(tensor, [&](int64_t row, const std::vector<float>& values) {
          for (int64_t j = 0; j < tensor.cols(); ++j) (*scaled)(row, j) = factor * values[j];
        });
        own->Replace(member, {scaled->data(), DType::kFloat32, tensor.shape}, scaled);
      }
      plan.stages.emplace_back(BlockStage{layer, Halves::kBoth, OwnBlock::Share(own)});
    }
    return Quantise(job, plan, ParseQuantise(mixture));
  };
  EXPECT_EQ(rounded_with(-1, "q4_0").report.eight_bits, 0);
  EXPECT_EQ(rounded_with(3, "q8_0").report.eight_bits, 0) << "it has eight bits anyway";
  const QuantisedPlan rounded = rounded_with(3, "q4_0");
  EXPECT_EQ(rounded.report.eight_bits, 1);
  const BlockWeights& block = TensorsOf(*model_.weights, rounded.plan.stages[3].block());
  EXPECT_EQ(block.down.dtype, DType::kQ8_0);
  EXPECT_EQ(block.up.dtype, DType::kQ4_0);
}

TEST_F(QuantisedModel, HealedProjectionsAreRoundedAgain) {
  const ShiftResult healed = Run("q4_0", "lra", Heal::kAll);
  EXPECT_FALSE(healed.healed.empty());
  ExpectTypes(healed.corrected, DType::kQ4_0);
}

TEST_F(QuantisedModel, ComesBackFromItsDirectory) {
  const ShiftResult result = Run("q4_0", "joint");
  const std::filesystem::path saved = directory_ / "saved";
  SaveAdapted(model_, result.corrected, Provenance(), false, saved);
  EXPECT_TRUE(std::filesystem::exists(saved / "own.gguf"));
  const Model opened = OpenAdapted(saved, {});
  EXPECT_EQ(opened.plan.Fingerprint(), result.corrected.Fingerprint());
  ExpectTypes(opened.plan, DType::kQ4_0);
  EXPECT_FALSE(opened.plan.output->table.empty());
  // A damaged file, and one that has other types.
  std::fstream file(saved / "own.gguf", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-40, std::ios::end);
  file.put('\x55');
  file.close();
  EXPECT_THROW(OpenAdapted(saved, {}), Error);
  std::filesystem::resize_file(saved / "own.gguf", 200);
  EXPECT_THROW(OpenAdapted(saved, {}), Error);
  std::filesystem::remove(saved / "own.gguf");
  EXPECT_THROW(OpenAdapted(saved, {}), Error);
}

class TiedQuantisedModel : public QuantisedModel {
 protected:
  TiedQuantisedModel() : QuantisedModel(/*tied=*/true) {}
};

TEST_F(TiedQuantisedModel, HasOneTable) {
  NoProgress progress;
  const DepthPlan plan =
      Quantise({context_, model_, calibration_, progress}, DepthPlan::Original(kLayers), ParseQuantise("q4_k_m")).plan;
  EXPECT_EQ(plan.output->table.data, plan.output->head.data);
  EXPECT_TRUE(plan.TiedHead(*model_.weights));
  EXPECT_EQ(plan.Parameters(*model_.weights), DepthPlan::Original(kLayers).Parameters(*model_.weights));
  SaveAdapted(model_, plan, Provenance(), false, directory_ / "saved");
  const Model opened = OpenAdapted(directory_ / "saved", {});
  EXPECT_TRUE(opened.plan.TiedHead(*opened.weights));
  EXPECT_EQ(opened.plan.Fingerprint(), plan.Fingerprint());
}

TEST_F(QuantisedModel, WhatDoesNotGoTogetherIsRefused) {
  Recipe recipe;
  recipe.prune = ParsePrune("layers=2-3");
  recipe.correction = "lra";
  recipe.quantise = ParseQuantise("q4_0");
  recipe.gate = true;
  NoProgress progress;
  EXPECT_THROW(Shift({context_, model_, calibration_, progress}, recipe), UsageError);
  calibration_.fit.clear();
  EXPECT_THROW(
      Quantise({context_, model_, calibration_, progress}, DepthPlan::Original(kLayers), ParseQuantise("q4_0")), Error);
}

}  // namespace
}  // namespace shiftrt
