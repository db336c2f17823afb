// SPDX-License-Identifier: Apache-2.0
// Saved models: what comes back is what went in, bit for bit; and what nobody saved is refused.
#include "tests/models/adapted_fixture.h"
#include "types/provenance.h"

namespace shiftrt {
namespace {

TEST_F(Adapted, ComesBackBitForBit) {
  for (const DepthPlan& plan : Plans()) {
    const Model model = With(base_, plan);
    Save(model, false, {.criterion = "bi"});
    const Model opened = OpenAdapted(saved_, {});
    EXPECT_EQ(opened.plan.stages.size(), plan.stages.size());
    EXPECT_EQ(opened.directory, fs::absolute(base_.directory));
    EXPECT_EQ(opened.provenance->criterion, "bi");
    EXPECT_EQ(Logits(opened), Logits(model));
  }
}

// Each field of a provenance is set to a value that is not its default.
TEST_F(Adapted, IsKnownByTheWeightsItWasMadeFrom) {
  Save(base_, false, {});
  EXPECT_TRUE(IsSavedFrom(saved_, *base_.weights));
  EXPECT_FALSE(IsSavedFrom(saved_, *Make("other", 2).weights));
  EXPECT_FALSE(IsSavedFrom(base_.directory, *base_.weights)) << "a checkpoint";
  EXPECT_FALSE(IsSavedFrom(directory_.path() / "nothing", *base_.weights));
}

TEST_F(Adapted, ProvenanceComesBackWhole) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  Provenance made;
  made.state = "fitted";
  made.model = "some/model";
  made.criterion = "bi";
  made.recipe = {"bi:0.25", "auto", "8", "gcv", "rrr", "drift", "norm,first:0", "all", "full", true};
  made.calibration = {"text.txt, 4 samples x 128 tokens", "00ff", 384, 128};
  made.repair.emplace();
  made.repair->selection = {"bi", {0.5, kNan, 1.0 / 3}, {BlockPart(1), BlockPart(2, Halves::kMlp)}, 2, Unit::kHalf};
  const FitReport fit = {{1, 2}, "1-2", "down", 0.1, 384, 8, 7.25, kNan, 0.75, kNan, 1e6, {3, 2, 0.125}, "doubtful"};
  made.repair->sites = {fit};
  made.repair->healed = {fit, fit};
  made.repair->merged_runs = {fit, fit, fit};
  made.repair->trials = {{"lra", "drift", "none", "rrr", "gcv", "drift, rrr", 1024, 384, 2.5, 0.01, kInfinity, true}};
  made.repair->untried = {"refit, because nothing stands before layer 0"};
  made.repair->gate = {{{BlockPart(1, Halves::kAttention)}, 2.5, 2.25, false}};
  made.repair->seconds = {1, 2, 3, 4, 5};
  made.variants = {{"pruned", "pruned", 100, 400, 12.5, 50, "and then"}};
  made.finetune = {{{"method", "lora"}, {"steps", "3"}}, "text.txt", "lra", "off", 4096, 1.5, {2, 1.75}};
  const Model model = Corrected();
  Save(model, false, made);
  const Model opened = OpenAdapted(saved_, {});
  const Provenance& read = *opened.provenance;
  const Json json = ProvenanceJson(made);
  EXPECT_EQ(ProvenanceJson(read).dump(), json.dump());  // as text, in which NaN is null
  // The comparison above cannot see a field that neither direction has.
  EXPECT_EQ(read.repair->sites.front().name, "1-2");
  EXPECT_EQ(json.size(), 23U) << json.dump(2);
  EXPECT_EQ(json["sites"][0].size(), 12U);
  EXPECT_EQ(json["trials"][0].size(), 12U);
  const std::string first = ReadFile(saved_ / kAdaptedFile);
  Save(opened, false, read);
  EXPECT_EQ(ReadFile(saved_ / kAdaptedFile), first);
}

// A record that another program wrote otherwise is no reason to refuse the model.
TEST_F(Adapted, ProvenanceOfOtherTypesCountsAsNotRecorded) {
  const Provenance read = ReadProvenance(Json::parse(
      R"({"correction": 3, "merge": "off", "selection": {"criterion": [], "removed": ["9.9"]}, "sites": [7],
          "variants": {"a": 1}, "seconds": "long", "finetune": 1, "calibration": null, "span": "no"})"));
  EXPECT_EQ(read.recipe.correction, "");
  EXPECT_EQ(read.recipe.merge, "off");
  EXPECT_EQ(read.criterion, "");
  EXPECT_TRUE(read.repair->selection.removed.empty());
  EXPECT_EQ(read.repair->sites.size(), 1U);
  EXPECT_TRUE(read.variants.empty());
  EXPECT_FALSE(read.finetune || read.calibration || read.recipe.span);
  EXPECT_TRUE(ProvenanceJson(ReadProvenance(Json())).empty());
}

TEST_F(Adapted, ABiasAloneComesBack) {
  const Model model = With(base_, {{BlockStage{0}, AdapterStage{{1}, LowRankAdapter(0, 5)}, BlockStage{2}}});
  Save(model);
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(opened.plan.stages[1].adapter().lra->rank(), 0);
  EXPECT_EQ(Logits(opened), Logits(model));
}

TEST_F(Adapted, TheNormOfAnAdapterComesBack) {
  for (const bool full : {true, false}) {
    const auto plain = full ? FullAdapter(7) : LowRankAdapter(2, 5);
    Lra lra{plain->a.Clone(), plain->p.Clone(), plain->q.Clone(), plain->b.Clone(), FullAdapter(9)->b.Clone()};
    const auto normed = std::make_shared<const Lra>(std::move(lra));
    const Model model = With(base_, {{BlockStage{0}, AdapterStage{{1}, normed}, BlockStage{2}}});
    EXPECT_NE(Logits(model), Logits(With(base_, {{BlockStage{0}, AdapterStage{{1}, plain}, BlockStage{2}}})));
    Save(model);
    EXPECT_EQ(ReadSaved()["version"], 4);
    const Model opened = OpenAdapted(saved_, {});
    EXPECT_EQ(Logits(opened), Logits(model));
    EXPECT_EQ(opened.plan.Fingerprint(), model.plan.Fingerprint());
    // A program that does not know of the norm would compute another model.
    Json older = ReadSaved();
    older["version"] = 3;
    WriteText(saved_ / kAdaptedFile, older.dump());
    EXPECT_NE(Refusal([&] { OpenAdapted(saved_, {}); }).find("norm is there, which a file of version 3 cannot have"),
              std::string::npos);
    fs::remove_all(saved_);
  }
}

TEST_F(Adapted, AdaptersNameTheLayersTheyStandFor) {
  Save(With(base_, {{BlockStage{0}, AdapterStage{{1, 2}, FullAdapter(7)}}}));
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(opened.plan.stages[1].adapter().parts, (std::vector<BlockPart>{1, 2}));
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

// The first MLP has fewer units than the model's, which are 12, and the second has more.
TEST_F(Adapted, MlpsOfOtherUnitsComeBack) {
  const DepthPlan plan = {{BlockStage{0}, AdapterStage{{1}, LowRankAdapter(2, 5)},
                           WithUnits(*base_.weights, {1, Halves::kMlp}, 4), WithUnits(*base_.weights, {2}, 20)}};
  const std::string expected = Logits(With(base_, plan));
  for (const bool with_weights : {false, true}) {
    Save(With(base_, plan), with_weights);
    EXPECT_EQ(ReadSaved()["version"], 6);
    EXPECT_EQ(ReadSaved()["plan"][2]["units"], 4);
    EXPECT_FALSE(ReadSaved()["plan"][0].contains("units"));
    const Model opened = OpenAdapted(saved_, {});
    EXPECT_EQ(Logits(opened), expected);
    EXPECT_EQ(MlpUnits(TensorsOf(*opened.weights, opened.plan.stages[2].block())), 4);
    EXPECT_EQ(MlpUnits(TensorsOf(*opened.weights, opened.plan.stages[3].block())), 20);
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), plan.Parameters(*base_.weights));
    // As the base of another saved model.
    const fs::path second = directory_.path() / "second";
    DepthPlan blocks = opened.plan;
    blocks.stages.erase(blocks.stages.begin() + 1);
    SaveAdapted(opened, blocks, {}, false, second);
    EXPECT_EQ(Logits(OpenAdapted(second, {})), Logits(With(opened, blocks)));
  }
  // Without adapters and half blocks, too, it is no stock checkpoint.
  const Model narrow = With(base_, {{BlockStage{0}, WithUnits(*base_.weights, {1}, 4)}});
  Save(narrow, /*with_weights=*/true);
  EXPECT_NE(Refusal([&] { LoadWeights(saved_); }).find("ShiftrtForCausalLM"), std::string::npos);
  EXPECT_EQ(Logits(OpenAdapted(saved_, {})), Logits(narrow));
}

TEST_F(Adapted, UnitsThatDoNotFitAreRefused) {
  Save(With(base_, {{BlockStage{0}, WithUnits(*base_.weights, {1, Halves::kMlp}, 4)}}));
  good_ = ReadSaved();
  const auto expect_shape_refused = [&](const Json& json, int units) {
    WriteText(saved_ / kAdaptedFile, json.dump());
    ExpectRefused("own.safetensors", fmt::format("tensor model.layers.1.mlp.gate_proj.weight is float32 [4, 8], "
                                                 "expected float32, float16 or bfloat16 [{}, 8]",
                                                 units));
  };
  Json json = good_;
  json["plan"][1]["units"] = 5;
  expect_shape_refused(json, 5);
  json["plan"][1].erase("units");
  expect_shape_refused(json, 12);
  ExpectJsonRefused("/plan/1/units", 0, "units 0");
  ExpectJsonRefused("/plan/1/units", "4", "units \"4\"");
  ExpectJsonRefused("/version", 5, "which a file of version 5 cannot have");
  ExpectJsonRefused("/version", 8, "version 8, expected 1 to 7");
  json = good_;
  json["plan"][1]["own"] = {"mlp.gate_proj.weight", "mlp.up_proj.weight"};
  ExpectJsonRefused(json, "the MLP of block 1 has 4 units, expected 12, because mlp.down_proj.weight is the base");
  WriteText(saved_ / kAdaptedFile, good_.dump());
  ExpectSpoiltTensorsRefused("own.safetensors");
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
    SaveAdapted(shorter, shorter.plan, Provenance(), with_weights, second);
    EXPECT_EQ(Logits(OpenAdapted(second, {})), Logits(shorter));
  }
  SaveAdapted(first, first.plan.Uncorrected(), Provenance(), /*with_weights=*/true, second);
  EXPECT_EQ(LoadWeights(second)->config.layers, 2) << "stock again";
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

// The base has the two kept blocks alone, and its adapter stands for a block of the original that it lacks.
TEST_F(Adapted, AModelWithItsWeightsIsABaseLikeAnyOther) {
  for (const DepthPlan& plan :
       {Corrected().plan, Tuned(base_), DepthPlan{{BlockStage{0}, BlockStage{1}, AdapterStage{{2}, FullAdapter(3)}}}}) {
    Save(With(base_, plan), /*with_weights=*/true);
    const fs::path first = directory_.path() / "first", second = directory_.path() / "second";
    fs::rename(saved_, first);
    const Model opened = OpenModel(first.string());
    for (const bool with_weights : {false, true}) {
      Model changed = opened;
      const auto block = std::make_shared<OwnBlock>(opened.weights->blocks[1]);
      block->Replace(&BlockWeights::down, RandomMatrix(kHidden, 12, 30).span());
      changed.plan = changed.plan.With(changed.plan.StageOf(1), BlockStage{.layer = 1, .own = OwnBlock::Share(block)});
      SaveAdapted(changed, changed.plan, {}, with_weights, second);
      const Model again = OpenModel(second.string());
      EXPECT_EQ(Logits(again), Logits(changed));
      EXPECT_EQ(again.removed, plan.RemovedLayers(3));
      EXPECT_EQ(again.plan.Adapters()[0]->parts, plan.Adapters()[0]->parts);
      SaveAdapted(again, again.plan, {}, false, saved_);
      EXPECT_EQ(Logits(OpenModel(saved_.string())), Logits(changed)) << "of a third save";
      fs::remove_all(saved_);
      fs::remove_all(second);
    }
    fs::remove_all(first);
  }
}

TEST_F(Adapted, ABaseWithoutTheRemovedBlocksIsSaid) {
  Save(Corrected(), /*with_weights=*/true);
  fs::rename(saved_, directory_.path() / "first");
  Save(OpenModel((directory_.path() / "first").string()));
  good_ = ReadSaved();
  EXPECT_EQ(good_["version"], 7);
  ExpectJsonRefused("/renumbered", 1, "renumbered is 1, expected true or false");
  ExpectJsonRefused("/renumbered", false, "layers is 3, but the base model has 2");
  ExpectJsonRefused("/version", 6, "renumbered, which a file of version 6 cannot be");
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
  for (const char* name :
       {"phi3", "gemma2", "gemma2_layer_types", "qwen2_window", "starcoder2", "nemotron", "cohere2"}) {
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
  model.weights = LoadWeights(base_.directory, {.dtype = WeightType::kBFloat16});
  Save(model, /*with_weights=*/true);
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(opened.weights->embedding.dtype, DType::kBFloat16);
  EXPECT_EQ(Logits(opened), Logits(model));
}

TEST_F(Adapted, AnotherTypeIsStillTheSameBase) {
  Save(Corrected());
  EXPECT_EQ(OpenAdapted(saved_, {.dtype = WeightType::kBFloat16}).weights->embedding.dtype, DType::kBFloat16);
  Make("base", 9);
  for (WeightType dtype : {WeightType::kAsStored, WeightType::kBFloat16}) {
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
  for (const Json& version : {Json(0), Json(8), Json("1"), Json(nullptr)})
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
      EXPECT_THROW(SaveAdapted(tuned, tuned.plan, Provenance(), with_weights, saved_, &lora), Error);
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
    EXPECT_NE(Refusal([&] { SaveAdapted(model, model.plan, Provenance(), with_weights, base_.directory / "."); }), "");
  }
  EXPECT_EQ(ReadFile(base_.directory / "model.safetensors"), before);
  EXPECT_EQ(Listing(base_.directory), (std::vector<std::string>{"config.json", "model.safetensors"}));
}

// A record is replaced only in the directory that still has the model it belongs to: between the save and the end of an
// evaluation, another program may have saved its own there.
TEST_F(Adapted, ARecordStaysWithItsModel) {
  const Model model = Corrected();
  const auto save = [&](const Provenance& made) { SaveAdapted(model, model.plan, made, false, saved_); };
  const Provenance fitted = {.state = "fitted"}, evaluated = {.state = "evaluated"}, other = {.state = "of another"};
  save(fitted);
  EXPECT_TRUE(ReplaceProvenance(saved_, fitted, evaluated));
  EXPECT_EQ(OpenAdapted(saved_, {}).provenance->state, "evaluated");
  save(other);
  const std::string file = ReadFile(saved_ / kAdaptedFile);
  EXPECT_FALSE(ReplaceProvenance(saved_, fitted, evaluated));
  EXPECT_EQ(ReadFile(saved_ / kAdaptedFile), file);
}

}  // namespace
}  // namespace shiftrt
