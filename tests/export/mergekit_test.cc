// SPDX-License-Identifier: Apache-2.0
// Recipes for mergekit and llama.cpp.
#include "models/adapted.h"
#include "tests/export/fixture.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class Mergekit : public ExportTest {
 protected:
  Model EightLayers() const {
    Json config = Json::parse(ReadFile(GoldenModel("llama2") / "config.json"));
    config["num_hidden_layers"] = 8;
    WriteText(directory_.path() / "shape.json", config.dump());
    const fs::path directory = directory_.path() / "eight";
    WriteRandomCheckpoint(directory_.path() / "shape.json", DType::kBFloat16, 1, directory);
    return OpenModel(directory.string());
  }
  std::string Recipe() const {  // without its comments
    std::string recipe = ReadFile(out_ / "mergekit.yaml");
    return recipe.substr(recipe.find("slices:"));
  }
};

TEST_F(Mergekit, SlicesAreTheRunsOfKeptLayers) {
  const Model model = EightLayers();
  settings_.base_name = "org/original";
  Write("mergekit", model, Pruned(model, {0, 3, 4, 6}));
  EXPECT_EQ(Recipe(),
            "slices:\n"
            "  - sources:\n      - model: \"org/original\"\n        layer_range: [1, 3]\n"
            "  - sources:\n      - model: \"org/original\"\n        layer_range: [5, 6]\n"
            "  - sources:\n      - model: \"org/original\"\n        layer_range: [7, 8]\n"
            "merge_method: passthrough\ndtype: bfloat16\n");
  EXPECT_NE(ReadFile(out_ / "llama-quantize.sh").find("since June 2025 (llama.cpp's pull request 13037)"),
            std::string::npos);
  EXPECT_NE(ReadFile(out_ / "llama-quantize.sh").find("exec llama-quantize --prune-layers 0,3,4,6 \"$1\" \"$2\" "),
            std::string::npos);
}

TEST_F(Mergekit, TheOriginalIsNamedAsItsFilesNameIt) {
  Model model = EightLayers();
  Write("mergekit", model, Pruned(model, {3}));
  EXPECT_NE(Recipe().find("model: \"" + model.directory.string() + "\""), std::string::npos) << "a directory";
  Json config = Json::parse(ReadFile(model.directory / "config.json"));
  config["_name_or_path"] = "org/name-1.5";
  WriteText(model.directory / "config.json", config.dump());
  fs::remove_all(out_);
  Write("mergekit", model, Pruned(model, {3}));
  EXPECT_NE(Recipe().find("model: \"org/name-1.5\""), std::string::npos) << Recipe();

  const fs::path cached = directory_.path() / "models--maker--their-model/snapshots/abc";
  fs::create_directories(cached.parent_path());
  fs::copy(model.directory, cached);
  model.directory = cached;
  fs::remove_all(out_);
  Write("mergekit", model, Pruned(model, {3}));
  EXPECT_NE(Recipe().find("model: \"maker/their-model\""), std::string::npos) << Recipe();
}

// A model that was saved with its weights has forgotten the original, which the recipe needs.
TEST_F(Mergekit, ASavedModelWithItsWeights) {
  const Model model = EightLayers();
  const fs::path saved = directory_.path() / "saved";
  SaveAdapted(model, Pruned(model, {3}), {.recipe = {.correction = "none"}}, /*with_weights=*/true, saved);
  const Model opened = OpenModel(saved.string());
  EXPECT_TRUE(WriteRefusal("mergekit", opened, opened.plan).starts_with("base_model: "));
  EXPECT_FALSE(fs::exists(out_));
  settings_.base_name = "org/original";
  Write("mergekit", opened, opened.plan);
  EXPECT_NE(Recipe().find("layer_range: [4, 8]"), std::string::npos);
  fs::remove_all(saved);
  fs::remove_all(out_);
  SaveAdapted(model, Pruned(model, {3}), {.recipe = {.correction = "laco"}}, /*with_weights=*/true, saved);
  const Model merged = OpenModel(saved.string());
  EXPECT_NE(WriteRefusal("mergekit", merged, merged.plan).find("it was corrected (laco)"), std::string::npos);
}

TEST_F(Mergekit, ItSaysWhereMergekitFails) {
  const Model llama = EightLayers();
  EXPECT_TRUE(Write("mergekit", llama, Pruned(llama, {3})).empty());
  fs::remove_all(out_);
  const Model qwen = Golden("qwen3");
  const std::vector<std::string> notes = Write("mergekit", qwen, Pruned(qwen, {1}));
  ASSERT_EQ(notes.size(), size_t{1});
  EXPECT_NE(notes[0].find("layer_types"), std::string::npos);
}

TEST_F(Mergekit, OnlyWholeBlocksThatAreRemoved) {
  const Model model = EightLayers();
  const auto refused = [&](const DepthPlan& plan, const std::string& word) {
    const std::string what = WriteRefusal("mergekit", model, plan);
    EXPECT_NE(what.find(word), std::string::npos) << what;
  };
  refused(model.plan, "no block is removed");
  refused(Pruned(model, {1}).With(0, AdapterStage{{0}, Adapter(model, 2, 1)}), "1 adapter,");
  refused(Pruned(model, {1}).With(0, BlockStage{0, Halves::kMlp}), "only the mlp runs");
  auto own = std::make_shared<BlockWeights>(model.weights->blocks[0]);
  refused(Pruned(model, {1}).With(0, BlockStage{.layer = 0, .own = own}), "block 0 has tensors of its own");
  refused(WithOutput(model, Pruned(model, {1})), "a head or a final norm of its own");
  const Model olmo3 = Golden("olmo3");
  EXPECT_NE(WriteRefusal("mergekit", olmo3, Pruned(olmo3, {1})).find("no definition of family olmo3"),
            std::string::npos);
  const Model windows = Golden("gemma2");
  EXPECT_NE(WriteRefusal("mergekit", windows, Pruned(windows, {1})).find("attention windows"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt
