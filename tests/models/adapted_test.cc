// SPDX-License-Identifier: Apache-2.0
// Saved models: what comes back is what went in, bit for bit; and what nobody saved is refused.
#include "models/adapted.h"

#include <gtest/gtest.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/decoder.h"
#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "models/saved_config.h"
#include "runtime/files.h"
#include "runtime/random.h"
#include "tests/file_size_limit.h"
#include "tests/models/checkpoint_files.h"
#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kHidden = 8;

Matrix<float> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix<float> m(rows, cols);
  for (float& x : m.span()) x = static_cast<float>(static_cast<double>(random.Next() >> 11) * 0x1p-53 - 0.5);
  return m;
}

std::shared_ptr<const Lra> FullAdapter(uint64_t seed) {
  Lra lra;
  lra.a = RandomMatrix(kHidden, kHidden, seed);
  lra.b = RandomMatrix(1, kHidden, seed + 1);
  return std::make_shared<const Lra>(std::move(lra));
}

std::shared_ptr<const Lra> LowRankAdapter(int64_t rank, uint64_t seed) {
  Lra lra;
  lra.p = RandomMatrix(kHidden, rank, seed);
  lra.q = RandomMatrix(rank, kHidden, seed + 1);
  lra.b = RandomMatrix(1, kHidden, seed + 2);
  return std::make_shared<const Lra>(std::move(lra));
}

// A hash of the logits of a few tokens.
std::string Logits(const Model& model) {
  Decoder decoder(Context::Default(), model.weights, model.plan);
  Batch batch;
  batch.Add(std::vector<int32_t>{1, 5, 23, 7, 0, 11});
  const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
  return HashHex(std::as_bytes(logits.span()));
}

std::vector<std::string> Listing(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class Adapted : public testing::Test {
 protected:
  void SetUp() override {
    base_ = Make("base", 1);
    saved_ = directory_.path() / "saved";
  }

  Model Make(const std::string& name, uint64_t seed, DType dtype = DType::kFloat32, bool tied = false) const {
    Model model;
    model.directory = directory_.path() / name;
    WriteText(directory_.path() / "shape.json", SmallConfig(tied));
    WriteRandomCheckpoint(directory_.path() / "shape.json", dtype, seed, model.directory);
    model.weights = LoadWeights(model.directory);
    return model;
  }
  static Model With(Model model, DepthPlan plan) {
    model.plan = std::move(plan);
    return model;
  }
  void Save(const Model& model, bool with_weights = false, const Json& provenance = Json::object()) const {
    SaveAdapted(model, model.plan, provenance, with_weights, saved_);
  }
  Model Corrected() const {
    return With(base_, {{BlockStage{0}, AdapterStage{{1}, LowRankAdapter(2, 5)}, BlockStage{2}}});
  }

  // A block with two tensors of its own among its others, and a head and a final norm in place of the model's.
  static DepthPlan Tuned(const Model& base) {
    const Weights& weights = *base.weights;
    const auto block = std::make_shared<OwnBlock>(weights.blocks[2]);
    block->Replace(&BlockWeights::down, RandomMatrix(kHidden, 12, 11).span());
    block->Replace(&BlockWeights::post_norm, RandomMatrix(1, kHidden, 12).span());
    const auto output = std::make_shared<OwnOutput>(weights, DepthPlan());
    output->Replace(&OutputWeights::head, RandomMatrix(24, kHidden, 13).span());
    output->Replace(&OutputWeights::final_norm, RandomMatrix(1, kHidden, 14).span());
    return {
        {BlockStage{0}, AdapterStage{{1}, LowRankAdapter(2, 5)}, BlockStage{.layer = 2, .own = OwnBlock::Share(block)}},
        OwnOutput::Share(output)};
  }
  // Factors for some projections of such plans.
  static Lora Factors() {
    Lora lora{.rank = 2, .alpha = 5, .factors = {}};
    const auto add = [&](int64_t layer, TensorView BlockWeights::*member, int64_t rows, int64_t cols) {
      for (const BlockTensor& row : BlockTensors())
        if (row.member == member)
          lora.factors.push_back({layer, &row, RandomMatrix(2, cols, 20 + rows), RandomMatrix(rows, 2, 21 + cols)});
    };
    add(2, &BlockWeights::down, kHidden, 12);
    add(2, &BlockWeights::q, kHidden, kHidden);
    add(0, &BlockWeights::v, kHidden / 2, kHidden);
    return lora;
  }

  static DepthPlan HalfBlocks() {
    return {{BlockStage{0, Halves::kAttention}, BlockStage{1, Halves::kMlp}, AdapterStage{{2}, LowRankAdapter(2, 5)}}};
  }
  // One plan of every kind.
  static std::vector<DepthPlan> Plans() {
    return {DepthPlan::Original(3),
            DepthPlan::Pruned(3, std::vector<int64_t>{1}),
            {{AdapterStage{{0}, FullAdapter(1)}, BlockStage{1}, AdapterStage{{2}, LowRankAdapter(3, 2)}}},
            {{BlockStage{0}, AdapterStage{{1, 2}, FullAdapter(7)}}},  // merged
            {{AdapterStage{{0}, LowRankAdapter(1, 3)}, AdapterStage{{1}, FullAdapter(4)}, BlockStage{2}}}};
  }

  Json ReadSaved() const { return Json::parse(ReadFile(saved_ / kAdaptedFile)); }
  std::string OpenRefusal() const {
    return Refusal([&] { OpenAdapted(saved_, {}); });
  }
  void ExpectRefused(const std::string& file, const std::string& word) const {
    const std::string what = OpenRefusal();
    EXPECT_NE(what.find((saved_ / file).string()), std::string::npos) << what;
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  }
  void ExpectJsonRefused(const Json& json, const std::string& word) const {
    WriteText(saved_ / kAdaptedFile, json.dump());
    ExpectRefused(kAdaptedFile, word);
  }
  // `value` in the place of what `pointer` names.
  void ExpectJsonRefused(const char* pointer, const Json& value, const std::string& word) const {
    Json json = good_;
    json[Json::json_pointer(pointer)] = value;
    ExpectJsonRefused(json, word);
  }
  void ExpectTensorsRefused(const std::vector<StoredTensor>& tensors, const std::string& word,
                            const char* file = "adapters.safetensors") const {
    WriteText(saved_ / file, SafetensorsBytes(tensors));
    ExpectRefused(file, word);
  }
  // Every tensor of `file` in turn: missing, of another shape or type, empty, not finite; and one too many.
  void ExpectSpoiltTensorsRefused(const char* file) const {
    const std::vector<StoredTensor> good = ReadTensors(saved_ / file);
    for (size_t i = 0; i < good.size(); ++i) {
      const std::string& name = good[i].name;
      auto tensors = good;
      tensors.erase(tensors.begin() + static_cast<int64_t>(i));
      ExpectTensorsRefused(tensors, name + " is missing", file);
      tensors = good;
      tensors[i].shape.push_back(1);
      ExpectTensorsRefused(tensors, name, file);
      tensors = good;
      tensors[i] = {name, "F32", {}, std::string(4, '\0')};
      ExpectTensorsRefused(tensors, name, file);
      tensors = good;
      tensors[i].dtype = "I32";
      ExpectTensorsRefused(tensors, name, file);
      tensors = good;
      tensors[i].dtype = "F64";
      tensors[i].bytes += tensors[i].bytes;
      ExpectTensorsRefused(tensors, name, file);
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        tensors = good;
        tensors[i].Set(tensors[i].bytes.size() / 4 - 1, bad);
        ExpectTensorsRefused(tensors, name, file);
      }
    }
    auto tensors = good;
    tensors.push_back({"stray", "F32", {1}, std::string(4, '\0')});
    ExpectTensorsRefused(tensors, "", file);
    const std::string bytes = SafetensorsBytes(good);
    for (size_t size : {size_t{0}, size_t{60}, bytes.size() - 1}) {
      WriteText(saved_ / file, bytes.substr(0, size));
      ExpectRefused(file, "");
    }
    fs::remove(saved_ / file);
    ExpectRefused(file, "No such file");
  }

  TemporaryDirectory directory_;
  fs::path saved_;
  Model base_;
  Json good_;
};

TEST_F(Adapted, ComesBackBitForBit) {
  for (const DepthPlan& plan : Plans()) {
    const Model model = With(base_, plan);
    Save(model, false, {{"selection", {{"criterion", "bi"}}}});
    const Model opened = OpenAdapted(saved_, {});
    EXPECT_EQ(opened.plan.stages.size(), plan.stages.size());
    EXPECT_EQ(opened.directory, fs::absolute(base_.directory));
    EXPECT_EQ(opened.provenance->criterion, "bi");
    EXPECT_EQ(Logits(opened), Logits(model));
  }
}

TEST_F(Adapted, ABiasAloneComesBack) {
  const Model model = With(base_, {{BlockStage{0}, AdapterStage{{1}, LowRankAdapter(0, 5)}, BlockStage{2}}});
  Save(model);
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(opened.plan.stages[1].adapter().lra->rank(), 0);
  EXPECT_EQ(Logits(opened), Logits(model));
}

TEST_F(Adapted, AdaptersNameTheLayersTheyStandFor) {
  Save(With(base_, {{BlockStage{0}, AdapterStage{{1, 2}, FullAdapter(7)}}}));
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(opened.plan.stages[1].adapter().layers, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(opened.plan.KeptLayers(), (std::vector<int64_t>{0}));
  EXPECT_EQ(opened.removed, (std::vector<int64_t>{1, 2}));
}

TEST_F(Adapted, HalfBlocksComeBack) {
  const DepthPlan plan = HalfBlocks();
  for (const bool with_weights : {false, true}) {
    Save(With(base_, plan), with_weights);
    EXPECT_EQ(ReadSaved()["version"], 2);
    const Model opened = OpenAdapted(saved_, {});
    EXPECT_EQ(opened.plan.blocks(), 2);
    EXPECT_EQ(opened.plan.stages[0], Stage(BlockStage{0, Halves::kAttention}));
    EXPECT_EQ(opened.plan.stages[1], Stage(BlockStage{1, Halves::kMlp}));
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), plan.Parameters(*base_.weights));
    EXPECT_EQ(opened.removed, (std::vector<int64_t>{2}));
  }
  Save(Corrected());
  EXPECT_EQ(ReadSaved()["version"], 1) << "of a plan that the first version can hold";
}

// Blocks whose corrections stand in another file are not opened as if they were the model.
TEST_F(Adapted, OnlyAModelOfBlocksAloneHasAStockConfig) {
  const Json base = Json::parse(ReadFile(base_.directory / "config.json"));
  for (const DepthPlan& plan : {Corrected().plan, DepthPlan{{BlockStage{0}, BlockStage{1, Halves::kMlp}}}}) {
    Save(With(base_, plan), /*with_weights=*/true);
    const Json config = Json::parse(ReadFile(saved_ / "config.json"));
    EXPECT_EQ(config["architectures"], Json::array({"ShiftrtForCausalLM"}));
    EXPECT_EQ(config["model_type"], "shiftrt");
    EXPECT_EQ(config["shiftrt"], Json({{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}}));
    EXPECT_NE(Refusal([&] { LoadWeights(saved_); }).find("ShiftrtForCausalLM"), std::string::npos);
    EXPECT_EQ(OpenAdapted(saved_, {}).weights->config.family, "llama");
  }
  Json expected = base;
  expected["num_hidden_layers"] = 2;
  Save(With(base_, DepthPlan::Pruned(3, std::vector<int64_t>{1})), /*with_weights=*/true);
  EXPECT_EQ(Json::parse(ReadFile(saved_ / "config.json")), expected);
  EXPECT_EQ(LoadWeights(saved_)->config.layers, 2);
}

TEST_F(Adapted, AMarkedModelIsABaseLikeAnyOther) {
  Save(Corrected(), /*with_weights=*/true);
  const Model first = OpenAdapted(saved_, {});
  const Model shorter = With(first, {{BlockStage{0}, AdapterStage{{1}, FullAdapter(3)}}});
  const fs::path second = directory_.path() / "second";
  for (const bool with_weights : {false, true}) {
    SaveAdapted(shorter, shorter.plan, "{}", with_weights, second);
    EXPECT_EQ(Logits(OpenAdapted(second, {})), Logits(shorter));
  }
  SaveAdapted(first, first.plan.Uncorrected(), "{}", /*with_weights=*/true, second);
  EXPECT_EQ(LoadWeights(second)->config.layers, 2) << "stock again";
}

// Nothing is saved but what differs, and it comes back beside one copy of the rest.
TEST_F(Adapted, TensorsOfThePlansOwnComeBack) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    const Model model = With(Make("other", 3, DType::kFloat32, tied), {});
    const Model tuned = With(model, Tuned(model));
    Save(tuned);
    EXPECT_EQ(ReadSaved()["version"], 3);
    const SafetensorsFile own(saved_ / "own.safetensors");
    std::vector<std::string> names;
    for (const auto& [name, tensor] : own.tensors()) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"lm_head.weight", "model.layers.2.mlp.down_proj.weight",
                                               "model.layers.2.post_attention_layernorm.weight", "model.norm.weight"}));
    const Model opened = OpenAdapted(saved_, {});
    EXPECT_EQ(Logits(opened), Logits(tuned));
    EXPECT_EQ(opened.plan.Fingerprint(), tuned.plan.Fingerprint());
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), tuned.plan.Parameters(*model.weights));
    EXPECT_FALSE(opened.plan.TiedHead(*opened.weights));
    EXPECT_EQ(opened.plan.stages[2].block().own->up.data, opened.weights->blocks[2].up.data) << "one copy of the rest";
    EXPECT_EQ(OpenSavedPlan(saved_, *model.weights).Fingerprint(), tuned.plan.Fingerprint());

    Save(tuned, /*with_weights=*/true);
    const Model whole = OpenAdapted(saved_, {});
    EXPECT_FALSE(whole.weights->config.tied_head);
    EXPECT_EQ(whole.plan.stages[2], Stage(BlockStage{1})) << "the checkpoint has its tensors";
    EXPECT_EQ(Logits(whole), Logits(tuned));
    fs::remove_all(saved_);
  }
  Save(Corrected());
  EXPECT_FALSE(fs::exists(saved_ / "own.safetensors"));
}

TEST_F(Adapted, AHeadOfItsOwnAlone) {
  const Model model = Make("other", 3, DType::kFloat32, /*tied=*/true);
  const auto output = std::make_shared<OwnOutput>(*model.weights, DepthPlan());
  output->Replace(&OutputWeights::head, RandomMatrix(24, kHidden, 13).span());
  const Model tuned = With(model, {DepthPlan::Original(3).stages, OwnOutput::Share(output)});
  Save(tuned);
  EXPECT_EQ(ReadSaved()["output"], Json::array({"lm_head.weight"}));
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(Logits(opened), Logits(tuned));
  EXPECT_EQ(opened.plan.output->final_norm.data, opened.weights->final_norm.data);
}

TEST_F(Adapted, OwnTensorsHaveTheTypeAskedFor) {
  const Model model = Make("other", 3, DType::kBFloat16);
  const Model tuned = With(model, Tuned(model));
  Save(tuned);
  const SafetensorsFile own(saved_ / "own.safetensors");
  for (const auto& [name, tensor] : own.tensors()) EXPECT_EQ(tensor.dtype, DType::kBFloat16) << name;
  EXPECT_EQ(Logits(OpenAdapted(saved_, {})), Logits(tuned));
  const Model wide = OpenAdapted(saved_, {.dtype = LoadDType::kFloat32});
  const auto expect_widened = [](const TensorView& found, const TensorView& expected) {
    ASSERT_EQ(found.dtype, DType::kFloat32);
    for (int64_t i = 0; i < expected.elements(); ++i)
      EXPECT_EQ(static_cast<const float*>(found.data)[i],
                static_cast<float>(static_cast<const BFloat16*>(expected.data)[i]));
  };
  expect_widened(wide.plan.output->head, tuned.plan.output->head);
  expect_widened(wide.plan.stages[2].block().own->down, tuned.plan.stages[2].block().own->down);
}

TEST_F(Adapted, FactorsAreMergedWhenTheyAreOpened) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Model model = Make("other", 3, dtype);
    const Model tuned = With(model, Tuned(model)),
                merged = With(model, MergeLora(*model.weights, tuned.plan, Factors()));
    const Lora lora = Factors();
    ASSERT_NE(Logits(merged), Logits(tuned));
    for (const bool with_weights : {false, true}) {
      SaveAdapted(tuned, tuned.plan, Json::object(), with_weights, saved_, &lora);
      EXPECT_EQ(ReadSaved()["version"], 3);
      const Model opened = OpenAdapted(saved_, {});
      EXPECT_EQ(Logits(opened), Logits(merged));
      EXPECT_EQ(opened.lora->rank, 2);
      EXPECT_EQ(opened.lora->factors.size(), 3u);
      EXPECT_EQ(Logits(OpenAdapted(saved_, {.merge_lora = false})), Logits(tuned));
      // Its tensors alone are not the model.
      const bool marked =
          with_weights && Refusal([&] { LoadWeights(saved_); }).find("ShiftrtForCausalLM") != std::string::npos;
      EXPECT_EQ(marked, with_weights);
    }
    // Asked for in float32, what is merged is not rounded.
    Model wide = model;
    wide.weights = LoadWeights(model.directory, {.dtype = LoadDType::kFloat32});
    wide.plan = MergeLora(*wide.weights, DepthPlan::Original(3), lora);
    SaveAdapted(model, DepthPlan::Original(3), Json::object(), false, saved_, &lora);
    EXPECT_EQ(Logits(OpenAdapted(saved_, {.dtype = LoadDType::kFloat32})), Logits(wide));
  }
}

TEST_F(Adapted, HostileOwnTensors) {
  const Model tuned = With(base_, Tuned(base_));
  Save(tuned);
  good_ = ReadSaved();
  for (const Json& names : {Json("mlp.down_proj.weight"), Json::array(), Json({"mlp.down_proj"}), Json({1}),
                            Json({"self_attn.q_proj.bias"}), Json({"mlp.down_proj.weight", "mlp.down_proj.weight"})})
    ExpectJsonRefused("/plan/2/own", names, "own");
  for (const Json& names : {Json("lm_head.weight"), Json::array(), Json({"embed"})})
    ExpectJsonRefused("/output", names, "output");
  ExpectJsonRefused("/version", 2, "version 2");
  Json json = good_;
  json["plan"][2]["own"] = {"mlp.up_proj.weight"};
  WriteText(saved_ / kAdaptedFile, json.dump());
  ExpectRefused("own.safetensors", "up_proj.weight is missing");
  json = good_;
  json.erase("output");
  WriteText(saved_ / kAdaptedFile, json.dump());
  ExpectRefused("own.safetensors", "4 tensors, but the plan has 2");
  WriteText(saved_ / kAdaptedFile, good_.dump());
  ExpectSpoiltTensorsRefused("own.safetensors");
}

TEST_F(Adapted, HostileFactors) {
  const Model tuned = With(base_, Tuned(base_));
  const Lora lora = Factors();
  SaveAdapted(tuned, tuned.plan, Json::object(), false, saved_, &lora);
  good_ = ReadSaved();
  EXPECT_EQ(good_["plan"][2]["lora"], Json({"mlp.down_proj.weight", "self_attn.q_proj.weight"}));
  for (const Json& names : {Json("mlp.down_proj.weight"), Json::array(), Json({"input_layernorm.weight"})})
    ExpectJsonRefused("/plan/2/lora", names, "lora");
  ExpectJsonRefused("/version", 2, "version 2");
  ExpectJsonRefused("/plan/1/lora", {"mlp.down_proj.weight"}, "more than adapter");
  Json json = good_;
  json["plan"][2]["lora"].erase(0);
  WriteText(saved_ / kAdaptedFile, json.dump());
  ExpectRefused("lora/adapter_model.safetensors", "factors for 3 tensors");
  WriteText(saved_ / kAdaptedFile, good_.dump());
  ExpectSpoiltTensorsRefused("lora/adapter_model.safetensors");
}

TEST_F(Adapted, SpoiltMarksAreRefused) {
  Save(Corrected(), /*with_weights=*/true);
  Json config = Json::parse(ReadFile(saved_ / "config.json"));
  for (const Json& mark : {Json(1), Json::array(), Json::object(), Json({{"architectures", "LlamaForCausalLM"}}),
                           Json({{"architectures", {"ShiftrtForCausalLM"}}})}) {
    config["shiftrt"] = mark;
    WriteText(saved_ / "config.json", config.dump());
    ExpectRefused("config.json", mark.contains("architectures") ? "architecture" : "shiftrt");
  }
}

TEST_F(Adapted, SettingsOfLayersStayWithTheirLayers) {
  const DepthPlan plan = DepthPlan::Pruned(5, std::vector<int64_t>{0, 3});
  const Json config = {{"num_hidden_layers", 5}, {"layer_types", {"a", "b", "c", "d", "e"}}, {"max_window_layers", 4}};
  EXPECT_EQ(KeptConfig(config, plan),
            Json({{"num_hidden_layers", 3}, {"layer_types", {"b", "c", "e"}}, {"max_window_layers", 2}}));
  EXPECT_EQ(KeptConfig({{"max_window_layers", 28}}, plan)["max_window_layers"], 3) << "no layer has a window";
}

TEST_F(Adapted, WithItsWeightsItStandsAlone) {
  for (const bool tied : {false, true}) {
    const Model base = Make("other", 2, DType::kBFloat16, tied);
    for (const DepthPlan& plan : Plans()) {
      const Model model = With(base, plan);
      Save(model, /*with_weights=*/true);
      const std::string expected = Logits(model);
      fs::rename(base.directory, directory_.path() / "away");
      fs::rename(saved_, directory_.path() / "moved");
      const Model opened = OpenAdapted(directory_.path() / "moved", {});
      EXPECT_EQ(opened.weights->config.layers, plan.blocks());
      EXPECT_EQ(opened.removed, plan.RemovedLayers(3));  // counted as the original counts them
      EXPECT_EQ(opened.weights->embedding.dtype, DType::kBFloat16);
      EXPECT_EQ(Logits(opened), expected);
      fs::rename(directory_.path() / "away", base.directory);
      fs::remove_all(directory_.path() / "moved");
    }
  }
}

TEST_F(Adapted, NoBlocksAreNoModelOfTheirOwn) {
  const Model model = With(base_, {{AdapterStage{{0, 1, 2}, FullAdapter(7)}}});
  EXPECT_NE(Refusal([&] { Save(model, /*with_weights=*/true); }).find("without blocks"), std::string::npos);
  Save(model);
  EXPECT_EQ(Logits(OpenAdapted(saved_, {})), Logits(model));
}

// Fused tensors and renamed ones are written as the family's checkpoints hold them, whether the parts still lie
// together or a block has some of its own; and each kept layer keeps its window.
TEST_F(Adapted, AFamilysOwnTensorsComeBack) {
  for (const char* name : {"phi3", "gemma2", "gemma2_layer_types", "qwen2_window"}) {
    SCOPED_TRACE(name);
    Model model;
    model.directory = directory_.path() / name;
    WriteRandomCheckpoint(GoldenModel(name) / "config.json", DType::kFloat32, 1, model.directory);
    model.weights = LoadWeights(model.directory);
    const int64_t layers = model.weights->config.layers;
    auto own = std::make_shared<BlockWeights>(model.weights->blocks[1]);
    const std::vector<float> k(own->k.elements(), 0.25f);
    own->k.data = k.data();
    model.plan = DepthPlan::Pruned(layers, std::vector<int64_t>{0});
    const DepthPlan changed = model.plan.With(0, BlockStage{.layer = 1, .own = own});
    for (const DepthPlan& plan : {model.plan, changed}) {
      model.plan = plan;
      Save(model, /*with_weights=*/true);
      const Model opened = OpenAdapted(saved_, {});
      const auto text = Json::parse(ReadFile(saved_ / "config.json"));
      EXPECT_EQ(text["num_hidden_layers"], layers - 1);
      for (int64_t layer = 1; layer < layers; ++layer)
        EXPECT_EQ(opened.weights->config.block.Window(layer - 1), model.weights->config.block.Window(layer));
      Batch batch;
      batch.Add(std::vector<int32_t>{1, 5, 23, 7, 0, 11, 2, 40, 3, 3, 9, 80, 17, 5});
      const auto logits = [&](const Model& of) {
        Decoder decoder(Context::Default(), of.weights, of.plan);
        return decoder.Logits(decoder.Forward(batch));
      };
      const Matrix<float> found = logits(opened), expected = logits(model);
      EXPECT_TRUE(std::equal(found.span().begin(), found.span().end(), expected.span().begin()));
      fs::remove_all(saved_);
    }
  }
}

TEST_F(Adapted, ConvertedWeightsAreSavedAsTheyRan) {
  Model model = Corrected();
  model.weights = LoadWeights(base_.directory, {.dtype = LoadDType::kBFloat16});
  Save(model, /*with_weights=*/true);
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(opened.weights->embedding.dtype, DType::kBFloat16);
  EXPECT_EQ(Logits(opened), Logits(model));
}

TEST_F(Adapted, AnotherTypeIsStillTheSameBase) {
  Save(Corrected());
  EXPECT_EQ(OpenAdapted(saved_, {.dtype = LoadDType::kBFloat16}).weights->embedding.dtype, DType::kBFloat16);
  Make("base", 9);
  for (LoadDType dtype : {LoadDType::kAuto, LoadDType::kBFloat16}) {
    const std::string what = Refusal([&] { OpenAdapted(saved_, {.dtype = dtype}); });
    EXPECT_NE(what.find("fingerprint"), std::string::npos) << what;
  }
}

TEST_F(Adapted, HostileJson) {
  Save(Corrected());
  good_ = ReadSaved();
  const auto text_refused = [&](const std::string& text, const std::string& word) {
    WriteText(saved_ / kAdaptedFile, text);
    ExpectRefused(kAdaptedFile, word);
  };
  text_refused("", "JSON");
  text_refused(good_.dump().substr(0, 40), "JSON");
  text_refused("{\"version\": \"\xFF\"}", "UTF-8");
  text_refused("[]", "version");
  text_refused(R"({"version": 1, "version": 1})", "duplicate key version");
  text_refused(std::string(200000, '[') + std::string(200000, ']'), "nested");
  for (const char* key : {"version", "base", "fingerprint", "layers", "removed", "plan"}) {
    Json json = good_;
    json.erase(key);
    ExpectJsonRefused(json, key);
  }
  for (const Json& version : {Json(0), Json(4), Json("1"), Json(nullptr)})
    ExpectJsonRefused("/version", version, "version");
  ExpectJsonRefused("/base", 3, "base");
  ExpectJsonRefused("/base", "base", "absolute");
  ExpectJsonRefused("/base", "../base", "absolute");
  ExpectJsonRefused("/base", "", "absolute");
  ExpectJsonRefused("/base", std::string("/tmp\0/x", 7), "absolute");
  ExpectJsonRefused("/base", ".", "not there");
  ExpectJsonRefused("/base", "/" + std::string(100000, 'x'), "not there");
  ExpectJsonRefused("/base", (directory_.path() / "none").string(), "not there");
  ExpectJsonRefused("/fingerprint", "0000000000000000", "0000000000000000");
  ExpectJsonRefused("/layers", -1, "layers");
  ExpectJsonRefused("/layers", 18446744073709551615u, "layers");
  ExpectJsonRefused("/layers", 4, "layers");
}

TEST_F(Adapted, HostilePlans) {
  Save(Corrected());
  good_ = ReadSaved();
  ExpectJsonRefused("/plan", 7, "plan");
  ExpectJsonRefused("/plan", Json::array(), "plan");
  ExpectJsonRefused("/plan/0", "block", "neither");
  ExpectJsonRefused("/plan/0", Json::object(), "neither");
  for (const Json& block : {Json(3), Json(-1), Json(0.5), Json("0"), Json(nullptr), Json(18446744073709551615u)})
    ExpectJsonRefused("/plan/0/block", block, "block");
  ExpectJsonRefused("/plan/2/block", 0, "after block 0");
  for (const Json& layers : {Json(1), Json::array(), Json({3}), Json({-1}), Json({"1"}), Json({1, 1}), Json({2, 1})})
    ExpectJsonRefused("/plan/1/adapter", layers, "adapter");
  ExpectJsonRefused("/plan/1/adapter", {2}, "does not stand for removed layers");
  for (const Json& layers : {Json(1), Json("1"), Json({3}), Json({-1}), Json({1, 1}), Json({2, 1})})
    ExpectJsonRefused("/removed", layers, "removed");
  ExpectJsonRefused("/removed", Json::array(), "does not stand for removed layers");
  ExpectJsonRefused("/removed", {0, 1}, "block 0 is among the removed layers");
  Json json = good_;
  json["plan"].erase(2);
  ExpectJsonRefused(json, "1 blocks in the plan and 1 removed, of 3 layers");
}

TEST_F(Adapted, HostileHalves) {
  Save(With(base_, HalfBlocks()));
  good_ = ReadSaved();
  for (const Json& halves : {Json("neither"), Json(""), Json(1), Json(nullptr), Json::array({"mlp"})})
    ExpectJsonRefused("/plan/0/halves", halves, "halves");
  ExpectJsonRefused("/plan/2/halves", "mlp", "more than adapter");
  ExpectJsonRefused("/plan/0/half", "mlp", "more than block");
  // A program that knows version 1 alone would run the whole block.
  ExpectJsonRefused("/version", 1, "version 1");
}

TEST_F(Adapted, HostileAdapters) {
  Save(Corrected());
  const fs::path file = saved_ / "adapters.safetensors";
  const std::vector<StoredTensor> good = ReadTensors(file);
  ASSERT_EQ(good.size(), 3u);  // P, Q, b
  auto tensors = good;
  tensors[0] = {"site.0.P", "F32", {kHidden, 0}, ""};
  ExpectTensorsRefused(tensors, "P has 0 columns");
  tensors[0] = {"site.0.P", "F32", {kHidden, 3}, std::string(kHidden * 3 * 4, '\0')};
  ExpectTensorsRefused(tensors, "site.0.Q");
  tensors = good;
  tensors.push_back({"site.0.A", "F32", {kHidden, kHidden}, std::string(kHidden * kHidden * 4, '\0')});
  ExpectTensorsRefused(tensors, "site.0.A");
  tensors = good;
  tensors.push_back({"site.1.b", "F32", {kHidden}, std::string(kHidden * 4, '\0')});
  ExpectTensorsRefused(tensors, "4 tensors");
  WriteText(file, SafetensorsBytes(good));
  ExpectSpoiltTensorsRefused("adapters.safetensors");
}

TEST_F(Adapted, AFullDiskLeavesWhatWasThere) {
  const Model model = Corrected();
  for (const bool with_weights : {false, true}) {
    for (rlim_t room : {rlim_t{0}, rlim_t{100}, rlim_t{300}, rlim_t{4096}}) {
      if (room == 4096 && !with_weights) continue;  // all of it fits
      const FileSizeLimit limit(room);
      EXPECT_NE(Refusal([&] { Save(model, with_weights); }).find(saved_.string()), std::string::npos);
      EXPECT_FALSE(fs::exists(saved_)) << room;
      const Lora lora = Factors();
      const Model tuned = With(base_, Tuned(base_));
      EXPECT_THROW(SaveAdapted(tuned, tuned.plan, Json::object(), with_weights, saved_, &lora), Error);
      EXPECT_FALSE(fs::exists(saved_)) << room;
    }
  }
  Save(model);
  const std::vector<std::string> files = Listing(saved_);
  const std::string expected = Logits(OpenAdapted(saved_, {}));
  {
    const FileSizeLimit limit(300);
    EXPECT_THROW(Save(With(base_, {{BlockStage{0}, AdapterStage{{1, 2}, FullAdapter(7)}}})), Error);
  }
  EXPECT_EQ(Listing(saved_), files);
  EXPECT_EQ(Logits(OpenAdapted(saved_, {})), expected);
}

TEST_F(Adapted, AnInterruptedSaveLeavesNothing) {
  const auto interrupted = [&] {
    RequestInterrupt();  // cannot be taken back, hence the process of its own
    try {
      Save(Corrected(), /*with_weights=*/true);
    } catch (const Interrupted&) {
      ::_exit(fs::exists(saved_) ? 1 : 0);
    }
    ::_exit(2);
  };
  EXPECT_EXIT(interrupted(), testing::ExitedWithCode(0), "");
}

TEST_F(Adapted, TheModelItselfIsNotOverwritten) {
  const std::string before = ReadFile(base_.directory / "model.safetensors");
  for (const bool with_weights : {false, true}) {
    const Model model = Corrected();
    EXPECT_NE(Refusal([&] { SaveAdapted(model, model.plan, Json::object(), with_weights, base_.directory / "."); }),
              "");
  }
  EXPECT_EQ(ReadFile(base_.directory / "model.safetensors"), before);
  EXPECT_EQ(Listing(base_.directory), (std::vector<std::string>{"config.json", "model.safetensors"}));
}

}  // namespace
}  // namespace shiftrt
