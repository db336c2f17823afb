// SPDX-License-Identifier: Apache-2.0
#include "train/narrow_mlp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/widen.h"
#include "models/adapted.h"
#include "models/own_tensors.h"
#include "tests/engine/rows.h"
#include "tests/models/mlp_units.h"
#include "tests/runtime/refusal.h"
#include "tests/shift/small_model.h"
#include "train/finetune.h"

namespace shiftrt::test {
namespace {

using B = BlockWeights;

constexpr int64_t kHidden = 32, kModelUnits = 64, kUnits = 32;

// A model of six layers with 64 units per MLP, of which layers 2 to 4 are removed, with an adapter in their place.
class NarrowMlpTest : public SmallModel {
 protected:
  NarrowMlpTest() {
    model_ = MakeWide(R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-6,
                         "hidden_act": "silu",)");
    Random random(5);
    auto lra = std::make_shared<Lra>();
    lra->a = Matrix<float>(kHidden, kHidden);
    lra->b = Matrix<float>::Zeros(1, kHidden);
    for (float& x : lra->a.span()) x = static_cast<float>(0.05 * random.Normal());
    const std::vector<AdapterStage> sites = {{{2, 3, 4}, lra}};
    model_.plan = DepthPlan::Corrected(kLayers, sites);
    const auto add = [&](TrainingText& text, int sequences) {
      for (int s = 0; s < sequences; ++s) {
        std::vector<int32_t> tokens(8 + random.Below(10));
        for (int32_t& t : tokens) t = static_cast<int32_t>(random.Below(kVocab));
        text.Add(tokens, 1);
      }
    };
    add(texts_.training, 40);
    add(texts_.validation, 6);
    texts_.hash = "h";
    settings_.method = Method::kReplacement;
    settings_.replacement = {Halves::kMlp, kUnits};
    settings_.keep_correction = true;
    settings_.checkpoint = directory_ / "checkpoint";
    settings_.pass_tokens = 64;
  }

  Model MakeWide(const std::string& family) const {
    std::ofstream(directory_ / "wide.json") << "{" << family << R"("hidden_size": 32, "vocab_size": 64,
               "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 1,
               "max_position_embeddings": 64, "rope_theta": 10000.0,
               "tie_word_embeddings": false, "torch_dtype": "float32"})";
    const auto place = directory_ / "wide";
    std::filesystem::remove_all(place);
    WriteRandomCheckpoint(directory_ / "wide.json", DType::kFloat32, 7, place);
    Model model;
    model.name = "wide";
    model.directory = place;
    model.weights = LoadWeights(place);
    model.plan = DepthPlan::Original(kLayers);
    return model;
  }

  TrainingResult Fresh() const {
    std::filesystem::remove(directory_ / "checkpoint");
    return Finetune({context_, model_, texts_, settings_, schedule_, {}, {}});
  }
  ReplacementPlan Replaced() const {
    return WithReplacements(*model_.weights, model_.plan, settings_.replacement, settings_.keep_correction);
  }
  static Batch WholeText(const TrainingText& text) {
    Batch batch;
    for (int64_t s = 0; s < text.sequences(); ++s)
      batch.Add(std::span(text.tokens).subspan(text.offsets[s], text.offsets[s + 1] - text.offsets[s]));
    return batch;
  }

  // Returns what a tap of a plan receives.
  Matrix<float> Tapped(const DepthPlan& plan, int64_t layer, TapPoint point, const Batch& batch) const {
    Matrix<float> seen;
    Decoder decoder(context_, model_.weights, plan,
                    {{layer, point, [&](const Rows& rows, const Batch&) { seen = Copied(rows); }}});
    decoder.Forward(batch);
    return seen;
  }
  // Returns what a tap of a stage receives that runs on `stream`.
  Matrix<float> Tapped(const BlockStage& stage, TapPoint point, const Batch& batch, const Matrix<float>& stream) const {
    Matrix<float> seen;
    Decoder decoder(context_, model_.weights, DepthPlan::Original(kLayers),
                    {{stage.layer, point, [&](const Rows& rows, const Batch&) { seen = Copied(rows); }}});
    const Stage only = stage;
    decoder.Resume(batch, stream.view(), {&only, 1});
    return seen;
  }
  // The stream after the correction, and what it lacks.
  Matrix<float> Corrected(const Batch& batch) const { return Tapped(model_.plan, 5, TapPoint::kInput, batch); }
  Matrix<float> Missing(const Batch& batch, const Matrix<float>& corrected) const {
    Matrix<float> missing = Tapped(DepthPlan::Original(kLayers), 4, TapPoint::kOutput, batch);
    for (int64_t i = 0; i < missing.size(); ++i) missing.data()[i] -= corrected.data()[i];
    return missing;
  }
  static double MeanSquare(const Matrix<float>& m) {
    double sum = 0;
    for (const float value : m.span()) sum += static_cast<double>(value) * value;
    return sum / static_cast<double>(m.size());
  }

  const Context context_ = Context::Default();
  TrainingTexts texts_;
  FinetuneSettings settings_;
  Schedule schedule_ = {Decay::kConstant, 0.003, 0, 60};
};

// Units of two blocks, whose norms have other gains, add what they add in their own blocks, with their down projection.
TEST_F(NarrowMlpTest, AddsUpTheUnitsOfItsBlocks) {
  const Weights& weights = *model_.weights;
  std::vector<MlpUnit> units;
  std::vector<float> down(kHidden * kUnits);
  for (int64_t i = 0; i < kUnits; ++i) units.push_back({i < 20 ? 2 : 4, i < 20 ? i : i - 20});
  for (int64_t i = 0; i < kHidden; ++i)
    for (int64_t j = 0; j < kUnits; ++j)
      down[i * kUnits + j] = Widened(weights.blocks[units[j].layer].down)[i * kModelUnits + units[j].unit];
  const BlockStage silent = NarrowMlp(weights, 2, units);
  EXPECT_EQ(MlpUnits(*silent.own), kUnits);
  EXPECT_EQ(silent.halves, Halves::kMlp);
  const auto own = std::make_shared<OwnBlock>(silent.own);
  own->Replace(&B::down, down);
  const Batch batch = WholeText(texts_.validation);
  const Matrix<float> stream = Tapped(DepthPlan::Original(kLayers), 3, TapPoint::kInput, batch),
                      update = Tapped({2, Halves::kMlp, OwnBlock::Share(own)}, TapPoint::kMlp, batch, stream),
                      first = Tapped(WithSilentUnits(weights, {2, Halves::kMlp}, 20), TapPoint::kMlp, batch, stream),
                      second = Tapped(WithSilentUnits(weights, {4, Halves::kMlp}, 12), TapPoint::kMlp, batch, stream);
  for (int64_t i = 0; i < update.size(); ++i) EXPECT_NEAR(update.data()[i], first.data()[i] + second.data()[i], 1e-5);
  EXPECT_EQ(MeanSquare(Tapped(silent, TapPoint::kMlp, batch, stream)), 0);
}

// Computed here again from taps.
TEST_F(NarrowMlpTest, HasTheUnitsThatWouldChangeTheCorrectedStreamMost) {
  settings_.batch = 64;  // one step reads all of the text
  settings_.pass_tokens = 100'000;
  const ReplacementPlan replaced = Replaced();
  ASSERT_EQ(replaced.runs.size(), 1U);
  const DepthPlan plan = WithChosenUnits(context_, model_.weights, replaced, texts_.training, settings_);
  ASSERT_EQ(plan.stages.size(), 5U);
  const BlockStage chosen = plan.stages[3].block();
  const Batch batch = WholeText(texts_.training);
  const Matrix<float> stream = Corrected(batch);
  std::vector<std::pair<double, MlpUnit>> scores;
  for (int64_t layer = 2; layer <= 4; ++layer) {
    const Matrix<float> a = Tapped({layer, Halves::kMlp}, TapPoint::kActivation, batch, stream);
    const std::vector<float> down = Widened(model_.weights->blocks[layer].down);
    for (int64_t j = 0; j < kModelUnits; ++j) {
      double energy = 0, column = 0;
      for (int64_t t = 0; t < a.rows(); ++t) {
        double size = 0;
        for (int64_t i = 0; i < kHidden; ++i) size += static_cast<double>(stream(t, i)) * stream(t, i);
        energy += static_cast<double>(a(t, j)) * a(t, j) / size;
      }
      for (int64_t i = 0; i < kHidden; ++i) column += std::pow(static_cast<double>(down[i * kModelUnits + j]), 2);
      scores.push_back({-energy * column, {layer, j}});
    }
  }
  std::sort(scores.begin(), scores.end());
  std::vector<MlpUnit> best;
  for (int64_t i = 0; i < kUnits; ++i) best.push_back(scores[i].second);
  std::sort(best.begin(), best.end());
  EXPECT_LT(best.front().layer, best.back().layer);
  const BlockStage expected = NarrowMlp(*model_.weights, 2, best);
  for (TensorView B::*member : {&B::gate, &B::up, &B::post_norm})
    EXPECT_EQ(Widened((*chosen.own).*member), Widened((*expected.own).*member));
}

TEST_F(NarrowMlpTest, TrainingBeginsAtTheErrorOfTheCorrectionAndLowersIt) {
  for (const bool keep : {true, false}) {
    settings_.keep_correction = keep;
    texts_.validation = texts_.training;
    const TrainingResult result = Fresh();
    const double first = result.history.validations.front().loss, last = result.history.validations.back().loss;
    if (keep) {
      const Batch batch = WholeText(texts_.training);
      EXPECT_NEAR(first / MeanSquare(Missing(batch, Corrected(batch))), 1, 1e-4);
    }
    EXPECT_LT(last, 0.95 * first);
    const BlockStage stage = result.plan.stages[keep ? 3 : 2].block();
    EXPECT_EQ(stage.layer, 2);
    EXPECT_EQ(stage.halves, Halves::kMlp);
    EXPECT_EQ(MlpUnits(*stage.own), kUnits);
    EXPECT_EQ(result.parameters, 3 * kHidden * kUnits + kHidden);
    EXPECT_EQ(result.plan.Adapters().size(), keep ? 1U : 0U);
    // The same training gives the same bits, and goes on from its checkpoint.
    EXPECT_EQ(Fresh().plan.Fingerprint(), result.plan.Fingerprint());
    const TrainingResult again = Finetune({context_, model_, texts_, settings_, schedule_, {}, {}});
    EXPECT_EQ(again.history.resumed, schedule_.steps);
    EXPECT_EQ(again.plan.Fingerprint(), result.plan.Fingerprint());
  }
}

// Training goes on by every method, from the saved model.
TEST_F(NarrowMlpTest, GoesOnByOtherMethodsFromItsDirectory) {
  schedule_.steps = 2;
  model_.plan = Fresh().plan;
  const std::filesystem::path saved = directory_ / "saved";
  SaveAdapted(model_, model_.plan, {}, /*with_weights=*/false, saved);
  model_ = OpenAdapted(saved, {});
  ASSERT_EQ(MlpUnits(*model_.plan.stages[3].block().own), kUnits);
  settings_.loss = TrainingLoss::kBoth;
  settings_.lora.rank = 4;
  settings_.layers = "all";
  schedule_ = {Decay::kConstant, 0.003, 0, 30};
  for (const auto& [method, adapters] : {std::pair{Method::kPartial, true}, {Method::kLora, false}}) {
    settings_.method = method;
    settings_.adapters = adapters;
    const TrainingResult result = Fresh();
    EXPECT_LT(result.history.losses.back(), result.history.losses.front()) << Name(method);
    if (!result.lora) {
      EXPECT_NE(Widened(result.plan.stages[3].block().own->down), Widened(model_.plan.stages[3].block().own->down));
      continue;
    }
    SaveAdapted(model_, result.plan, {}, false, saved, &*result.lora);
    const Model tuned = OpenAdapted(saved, {});
    ASSERT_TRUE(tuned.lora);
    EXPECT_EQ(tuned.plan.Fingerprint(), MergeLora(*model_.weights, result.plan, *result.lora).Fingerprint());
  }
}

TEST_F(NarrowMlpTest, UnitsThatTheModelCannotHaveAreRefused) {
  const auto refusal = [&](int64_t units) {
    settings_.replacement.units = units;
    return Refusal([&] { Replaced(); });
  };
  for (const int64_t units : {1, 16, 33, 96})
    EXPECT_NE(refusal(units).find(fmt::format("mlp:{}: expected a multiple of 32 from 32 to 64", units)),
              std::string::npos)
        << refusal(units);
  EXPECT_EQ(refusal(64), "");
  model_.plan = DepthPlan::Pruned(kLayers, std::vector<int64_t>{3});
  settings_.keep_correction = false;
  EXPECT_EQ(refusal(64), "");
  for (
      const auto& [family, why] :
      {std::pair<const char*, const char*>{
           R"("architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "rms_norm_eps": 1e-6, "sliding_window": 8,
               "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh",)",
           "stand after the MLP, too"},
       {R"("architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "norm_epsilon": 1e-5,
            "use_bias": true, "hidden_act": "gelu_pytorch_tanh",)",
        "have biases"}}) {
    model_ = MakeWide(family);
    model_.plan = DepthPlan::Pruned(kLayers, std::vector<int64_t>{3});
    EXPECT_NE(refusal(32).find(why), std::string::npos) << refusal(32);
  }
}

TEST(ReplacementWords, AreReadAndWritten) {
  EXPECT_EQ(ParseReplacement("block"), Replacement{});
  EXPECT_EQ(ParseReplacement("both"), Replacement{});
  EXPECT_EQ(ParseReplacement("mlp"), Replacement{Halves::kMlp});
  EXPECT_EQ(ParseReplacement("mlp:128"), (Replacement{Halves::kMlp, 128}));
  for (const char* word : {"both", "attention", "mlp", "mlp:128"}) EXPECT_EQ(Name(ParseReplacement(word)), word);
  for (const char* word : {"", "half", "mlp:", "mlp:0", "mlp:-32", "mlp:12.5", "mlp:128x", "block:64", "attention:64"})
    EXPECT_NE(Refusal([&] { ParseReplacement(word); }).find(fmt::format("\"{}\" is none of", word)), std::string::npos);
}

}  // namespace
}  // namespace shiftrt::test
