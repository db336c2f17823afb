// SPDX-License-Identifier: Apache-2.0
// Exports of the format hf-lra: adapters come back where they stood, and what nobody wrote is refused.
#include "models/hf_lra.h"

#include "models/adapted.h"
#include "models/saved_config.h"
#include "tests/export/fixture.h"
#include "tests/file_size_limit.h"
#include "tests/models/checkpoint_files.h"
#include "tests/models/mlp_units.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class HfLra : public ExportTest {
 protected:
  // Adapters before the first block, between blocks (two at one place), and after the last; layer 2 of 4 or more is
  // among the kept ones.
  static DepthPlan Adapted(const Model& model) {
    const int64_t last = model.weights->config.layers - 1;
    DepthPlan plan = {{AdapterStage{{0}, Adapter(model, 2, 1)}}};
    for (int64_t layer = 1; layer < last; ++layer) plan.stages.emplace_back(BlockStage{layer});
    plan.stages.emplace_back(AdapterStage{{last}, Adapter(model, -1, 5)});
    return plan;
  }
  // A Llama of 5 layers.
  Model FiveLayers(DType dtype = DType::kFloat32) const {
    Json config = Json::parse(ReadFile(GoldenModel("llama2") / "config.json"));
    config["num_hidden_layers"] = 5;
    WriteText(directory_.path() / "shape.json", config.dump());
    const fs::path directory = directory_.path() / "five";
    WriteRandomCheckpoint(directory_.path() / "shape.json", dtype, 1, directory);
    return OpenModel(directory.string());
  }
  static DepthPlan EveryPlace(const Model& model) {
    return {{AdapterStage{{0}, Adapter(model, 2, 1)}, BlockStage{1}, AdapterStage{{2}, Adapter(model, 3, 11)},
             AdapterStage{{3}, Adapter(model, -1, 21)}, BlockStage{4}}};
  }
  void ExpectRefused(const Json& config, const std::string& word) const {
    WriteText(out_ / "config.json", config.dump());
    const std::string what = Refusal([&] { OpenModel(out_.string()); });
    EXPECT_NE(what.find(out_.string()), std::string::npos) << what;
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  }
};

TEST_F(HfLra, EveryFamilyComesBackBitForBit) {
  for (const char* name :
       {"llama2",     "llama_bias", "mistral_window", "qwen2_tied", "qwen3",      "phi3",      "gemma2",
        "gemma3",     "olmo3",      "smollm3",        "granite",    "glm",        "glm4",      "exaone4",
        "starcoder2", "nemotron",   "cohere2",        "gemma",      "vaultgemma", "ministral", "arcee",
        "jais2",      "cwm",        "hyperclovax",    "qwen3_5",    "hunyuan",    "apertus",   "lfm2"}) {
    SCOPED_TRACE(name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const Model model = Golden(name, dtype);
      if (model.weights->config.layers < 3) continue;
      const DepthPlan plan = Adapted(model);
      Write("hf-lra", model, plan);
      const Model opened = OpenModel(out_.string());
      EXPECT_EQ(opened.plan.Adapters().size(), plan.Adapters().size());
      EXPECT_EQ(opened.weights->embedding.dtype, dtype);
      ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
      fs::remove_all(out_);
    }
  }
}

TEST_F(HfLra, AdaptersStandWhereTheyStood) {
  const Model model = FiveLayers();
  const DepthPlan plan = EveryPlace(model);
  Write("hf-lra", model, plan);
  const Json config = ReadJson("config.json");
  EXPECT_EQ(config["model_type"], "shiftrt");
  EXPECT_EQ(config["architectures"], Json::array({"ShiftrtForCausalLM"}));
  EXPECT_EQ(config["num_hidden_layers"], 2);
  EXPECT_EQ(config["auto_map"], Json({{"AutoConfig", "configuration_shiftrt.ShiftrtConfig"},
                                      {"AutoModelForCausalLM", "modeling_shiftrt.ShiftrtForCausalLM"}}));
  const Json& mark = config["shiftrt"];
  EXPECT_EQ(mark["format"], 1);
  EXPECT_EQ(mark["base_model_type"], "llama");
  EXPECT_EQ(mark["base_architecture"], "LlamaForCausalLM");
  const Json expected = Json::parse(R"([
    {"layer": 0, "where": "before", "index": 0, "kind": "low-rank", "rank": 2, "removed": [0]},
    {"layer": 0, "where": "after", "index": 0, "kind": "low-rank", "rank": 3, "removed": [2]},
    {"layer": 0, "where": "after", "index": 1, "kind": "full", "rank": )" +
                                    std::to_string(model.weights->config.hidden) + R"(, "removed": [3]}])");
  EXPECT_EQ(mark["adapters"], expected);

  const SafetensorsFile file(out_ / "model.safetensors");
  const int64_t hidden = model.weights->config.hidden;
  const auto tensor = [&](const std::string& name, std::vector<int64_t> shape) {
    const TensorView& view = file.tensors().at("model.layers.0." + name);
    EXPECT_EQ(view.shape, shape) << name;
    EXPECT_EQ(view.dtype, DType::kFloat32) << name;
    return static_cast<const float*>(view.data);
  };
  const Lra& before = *plan.stages[0].adapter().lra;
  const Lra& full = *plan.stages[3].adapter().lra;
  EXPECT_EQ(tensor("adapters_before.0.down.weight", {2, hidden})[1 * hidden + 3], before.p(3, 1));
  EXPECT_EQ(tensor("adapters_before.0.up.weight", {hidden, 2})[3 * 2 + 1], before.q(1, 3));
  EXPECT_EQ(tensor("adapters_before.0.up.bias", {hidden})[3], before.b(0, 3));
  EXPECT_EQ(tensor("adapters_after.1.linear.weight", {hidden, hidden})[1 * hidden + 3], full.a(3, 1));
  EXPECT_EQ(tensor("adapters_after.1.linear.bias", {hidden})[3], full.b(0, 3));

  for (const char* name : {"configuration_shiftrt.py", "modeling_shiftrt.py"})
    EXPECT_EQ(ReadFile(out_ / name), ReadFile(TestDirectory().parent_path() / "export/hf_lra" / name));

  const Model opened = OpenModel(out_.string());
  EXPECT_EQ(opened.removed, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(opened.provenance->criterion, "bi");
  EXPECT_EQ(opened.plan.stages[3].adapter().parts, (std::vector<BlockPart>{3}));
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

// The mean update (rank 0), which PyTorch's Linear has no shape for.
TEST_F(HfLra, ABiasAloneIsAnAdapterOfZeros) {
  const Model model = FiveLayers();
  const DepthPlan plan = {{BlockStage{0}, AdapterStage{{1, 2, 3}, Adapter(model, 0, 3)}, BlockStage{4}}};
  Write("hf-lra", model, plan);
  EXPECT_EQ(ReadJson("config.json")["shiftrt"]["adapters"][0]["rank"], 1);
  const Model opened = OpenModel(out_.string());
  EXPECT_EQ(opened.plan.stages[1].adapter().parts, (std::vector<BlockPart>{1, 2, 3}));
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

TEST_F(HfLra, WithoutAdaptersAndInShards) {
  const Model model = FiveLayers();
  const DepthPlan pruned = Pruned(model, {1, 2});
  Write("hf-lra", model, pruned);
  EXPECT_TRUE(ReadJson("config.json")["shiftrt"]["adapters"].empty());
  fs::remove_all(out_);
  settings_.shard_bytes = 1;
  const DepthPlan plan = EveryPlace(model);
  Write("hf-lra", model, plan);
  const Model opened = OpenModel(out_.string());
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

// A correction may change the block before a run of removed ones and put an adapter after it.
TEST_F(HfLra, BlocksWithTensorsOfTheirOwnStandWithAdapters) {
  const Model model = FiveLayers(DType::kBFloat16);
  auto own = std::make_shared<BlockWeights>(model.weights->blocks[1]);
  own->down = model.weights->blocks[3].down;
  DepthPlan plan = EveryPlace(model);
  plan = plan.With(plan.StageOf(1), BlockStage{.layer = 1, .own = own});
  Write("hf-lra", model, plan);
  const Model opened = OpenModel(out_.string());
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

// An export is a model like any other: it can be exported again.
TEST_F(HfLra, AnExportIsAModelToExport) {
  const Model model = FiveLayers(DType::kBFloat16);
  const DepthPlan plan = EveryPlace(model);
  Write("hf-lra", model, plan);
  const Model first = OpenModel(out_.string());
  const Json config = ReadJson("config.json");
  provenance_ = *first.provenance;
  out_ = directory_.path() / "again";
  Write("hf-lra", first, first.plan);
  EXPECT_EQ(ReadJson("config.json"), config);
  const Model second = OpenModel(out_.string());
  ExpectSame(Logits(second, second.plan), Logits(model, plan));
  out_ = directory_.path() / "pruned";
  Write("hf", first, first.plan.Uncorrected());
  EXPECT_EQ(ReadJson("config.json")["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_FALSE(ReadJson("config.json").contains("auto_map"));
}

TEST_F(HfLra, AdaptersOfASixteenBitDirectoryAreRead) {
  const Model model = FiveLayers();
  Write("hf-lra", model, EveryPlace(model));
  std::vector<StoredTensor> tensors = ReadTensors(out_ / "model.safetensors");
  for (StoredTensor& tensor : tensors) {  // as save_pretrained() of a bfloat16 model writes them
    std::string narrow;
    for (size_t at = 2; at < tensor.bytes.size(); at += 4) narrow += tensor.bytes.substr(at, 2);
    tensor.dtype = "BF16";
    tensor.bytes = narrow;
  }
  WriteText(out_ / "model.safetensors", SafetensorsBytes(tensors));
  const Model opened = OpenModel(out_.string());
  EXPECT_EQ(opened.plan.Adapters().size(), size_t{3});
  const float expected = EveryPlace(model).stages[0].adapter().lra->b(0, 3);
  EXPECT_NEAR(opened.plan.stages[0].adapter().lra->b(0, 3), expected, std::abs(expected) / 128);
}

// Without the attention of the first block, and with an adapter for the MLP of another and the block after it.
TEST_F(HfLra, HalfBlocksOfEveryFamilyComeBackBitForBit) {
  for (const char* name :
       {"llama2",     "llama_bias", "mistral_window", "qwen2_tied", "qwen3",      "phi3",      "gemma2",
        "gemma3",     "olmo3",      "smollm3",        "granite",    "glm",        "glm4",      "exaone4",
        "starcoder2", "nemotron",   "cohere2",        "gemma",      "vaultgemma", "ministral", "arcee",
        "jais2",      "cwm",        "hyperclovax",    "qwen3_5",    "hunyuan",    "apertus",   "lfm2"}) {
    SCOPED_TRACE(name);
    const Model model = Golden(name, DType::kBFloat16);
    const int64_t last = model.weights->config.layers - 1;
    if (last < 2) continue;
    DepthPlan plan = {{AdapterStage{{{0, Halves::kAttention}}, Adapter(model, 2, 1)}, BlockStage{0, Halves::kMlp}}};
    for (int64_t layer = 1; layer + 1 < last; ++layer) plan.stages.emplace_back(BlockStage{layer});
    plan.stages.emplace_back(BlockStage{last - 1, Halves::kAttention});
    plan.stages.emplace_back(AdapterStage{{{last - 1, Halves::kMlp}, last}, Adapter(model, -1, 5)});
    Write("hf-lra", model, plan);
    const Model opened = OpenModel(out_.string());
    EXPECT_EQ(opened.plan.half_blocks(), 2);
    EXPECT_EQ(opened.plan.Adapters()[0]->parts, plan.Adapters()[0]->parts);
    EXPECT_EQ(opened.plan.Adapters()[1]->parts, plan.Adapters()[1]->parts);
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), plan.Parameters(*model.weights));
    ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
    // A directory that has changes alone refers to the export.
    const fs::path changes = directory_.path() / "changes";
    SaveAdapted(opened, opened.plan, {}, false, changes);
    const Model reopened = OpenModel(changes.string());
    ExpectSame(Logits(reopened, reopened.plan), Logits(model, plan));
    fs::remove_all(changes);

    const Json mark = ReadJson("config.json")["shiftrt"];
    EXPECT_EQ(mark["format"], 2);
    EXPECT_EQ(mark["half_blocks"],
              Json({{{"layer", 0}, {"runs", "mlp"}}, {{"layer", last - 1}, {"runs", "attention"}}}));
    EXPECT_EQ(mark["removed"], Json::array({last}));
    EXPECT_EQ(mark["adapters"][1]["removed"], Json({fmt::format("{}.mlp", last - 1), last}));
    const SafetensorsFile file(out_ / "model.safetensors");
    for (const auto& [tensor, view] : file.tensors()) {
      EXPECT_EQ(tensor.find("layers.0.self_attn"), std::string::npos) << tensor;
      // The MLP reads a norm that both halves share.
      EXPECT_TRUE(model.weights->config.block.shared_norm ||
                  tensor.find("layers.0.input_layernorm") == std::string::npos)
          << tensor;
      EXPECT_EQ(tensor.find(fmt::format("layers.{}.mlp", last - 1)), std::string::npos) << tensor;
    }
    const std::string card = ReadFile(out_ / "README.md");
    EXPECT_NE(card.find(fmt::format("| halves removed | 0.attn, {}.mlp |", last - 1)), std::string::npos) << card;

    const fs::path first = std::exchange(out_, directory_.path() / "again");
    Write("hf-lra", opened, opened.plan);
    EXPECT_EQ(ReadJson("config.json")["shiftrt"]["half_blocks"], mark["half_blocks"]);
    EXPECT_EQ(ReadFile(out_ / "model.safetensors"), ReadFile(first / "model.safetensors"));
    fs::remove_all(out_);
    fs::remove_all(first);
    out_ = first;
  }
}

// Adapters on the normed stream, and MLPs of other widths.
TEST_F(HfLra, NormsOfAdaptersAndWidthsComeBackBitForBit) {
  for (const char* name :
       {"llama2", "llama_bias", "mistral_window", "qwen2_tied", "qwen3", "phi3", "gemma2", "starcoder2"}) {
    SCOPED_TRACE(name);
    const Model model = Golden(name, DType::kBFloat16);
    if (model.weights->config.layers < 3) continue;
    DepthPlan plan = Pruned(model, {1});
    for (const int64_t rank : {4, -1}) {
      const auto plain = Adapter(model, rank, 1);
      Lra lra{plain->a.Clone(), plain->p.Clone(), plain->q.Clone(), plain->b.Clone(),
              RandomMatrix(1, model.weights->config.hidden, 4)};
      plan.stages.insert(plan.stages.begin() + 1, AdapterStage{{1}, std::make_shared<const Lra>(std::move(lra))});
    }
    if (model.weights->config.block.gated) plan.stages[0] = WithUnits(*model.weights, BlockStage{0}, 64);
    Write("hf-lra", model, plan);
    const Json mark = ReadJson("config.json")["shiftrt"];
    EXPECT_EQ(mark["format"], 3);
    EXPECT_EQ(mark["adapters"][0]["norm"], true);
    const Model opened = OpenModel(out_.string());
    ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), plan.Parameters(*model.weights));
    fs::remove_all(out_);
  }
}

// Such a directory has no more than runs: nothing else can be asked of it.
TEST_F(HfLra, AHalfThatIsNotThereCannotRun) {
  const Model model = FiveLayers();
  Write("hf-lra", model, {{BlockStage{0}, BlockStage{1, Halves::kMlp}, BlockStage{2}, BlockStage{3}, BlockStage{4}}});
  const Model opened = OpenModel(out_.string());
  const std::string what = Refusal([&] { Logits(opened, DepthPlan::Original(5)); });
  EXPECT_NE(what.find("block 1 has no input_layernorm.weight"), std::string::npos) << what;
  EXPECT_NE(
      Refusal([&] { SaveAdapted(opened, opened.plan, {}, true, directory_.path() / "s"); }).find("block 1 has no"),
      std::string::npos);
}

TEST_F(HfLra, OtherFormatsRefuseHalfBlocksAndNameThisOne) {
  const Model model = FiveLayers();
  const std::string what = WriteRefusal("mergekit", model, {{BlockStage{0}, BlockStage{1, Halves::kMlp}}});
  EXPECT_NE(what.find("of block 1 only the mlp runs, which mergekit has no place for. Formats that can: hf, hf-lra"),
            std::string::npos)
      << what;
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(HfLra, TheRefusalOfHfNamesIt) {
  const Model model = FiveLayers();
  for (const char* format : {"hf", "gguf"}) {
    const std::string what = WriteRefusal(format, model, EveryPlace(model));
    EXPECT_NE(what.find("Formats that can: hf-lra"), std::string::npos) << what;
    EXPECT_NE(what.find("holds what the recipe stock makes"), std::string::npos) << what;
  }
  auto own = std::make_shared<BlockWeights>(model.weights->blocks[1]);
  const std::string what = WriteRefusal("mergekit", model, {{BlockStage{0}, BlockStage{1, Halves::kBoth, own}}});
  EXPECT_NE(what.find("Formats that can: hf, hf-lra, gguf"), std::string::npos) << what;
  EXPECT_NE(what.find("mergekit holds what the correction none makes"), std::string::npos) << what;
}

TEST_F(HfLra, SpoiltConfigsAreRefused) {
  const Model model = FiveLayers();
  Write("hf-lra", model, EveryPlace(model));
  const Json good = ReadJson("config.json");
  const auto refused = [&](const char* pointer, const Json& value, const std::string& word) {
    Json config = good;
    config[Json::json_pointer(pointer)] = value;
    ExpectRefused(config, word);
  };
  refused("/shiftrt/format", 4, "format is 4");
  refused("/shiftrt/half_blocks", Json::array(), "which format 1 does not have");
  const auto half_refused = [&](const Json& half_blocks, const std::string& word) {
    Json config = good;
    config["shiftrt"]["format"] = 2;
    config["shiftrt"]["half_blocks"] = half_blocks;
    ExpectRefused(config, word);
  };
  half_refused(3, "not a list");
  half_refused({3}, "not an object");
  half_refused({{{"layer", 2}, {"runs", "mlp"}}}, "layer is 2, expected 0 to 1");
  half_refused({{{"layer", 1}, {"runs", "both"}}}, "runs is \"both\"");
  half_refused({{{"layer", 1}, {"runs", "mlp"}}, {{"layer", 1}, {"runs", "mlp"}}}, "a second one");
  half_refused({{{"layer", 1}, {"runs", "mlp"}}}, "is not one this configuration has");
  refused("/shiftrt/base_architecture", "GPT2LMHeadModel", "GPT2LMHeadModel");
  refused("/shiftrt/base_architecture", nullptr, "architectures");
  refused("/shiftrt/adapters", 3, "not a list");
  refused("/shiftrt/adapters/0", 3, "not an object");
  refused("/shiftrt/adapters/0/layer", 2, "layer is 2, expected 0 to 1");
  refused("/shiftrt/adapters/0/layer", -1, "layer is -1");
  refused("/shiftrt/adapters/0/where", "beside", "where is \"beside\"");
  refused("/shiftrt/adapters/0/kind", "round", "kind is \"round\"");
  refused("/shiftrt/adapters/0/rank", 0, "rank is 0");
  refused("/shiftrt/adapters/0/rank", 4, "is float32 [2, 48], expected float32, float16 or bfloat16 [4, 48]");
  refused("/shiftrt/adapters/1/index", 1, "index 1 comes before index 0");
  refused("/shiftrt/adapters/2/index", 0, "a second one at this place");
  refused("/shiftrt/adapters/0/removed", Json::array(), "removed");
  refused("/shiftrt/adapters/0/removed", {1}, "are not removed layers");
  refused("/shiftrt/adapters/0/removed", {2, 0}, "ascending");
  refused("/shiftrt/adapters/0/removed", {"1.mlp"}, "are not removed layers");
  refused("/shiftrt/adapters/0/removed", {"1.norm"}, "a half of one");
  refused("/shiftrt/adapters/0/where", "after", "index");
  refused("/shiftrt/removed", "all", "removed");
  Json config = good;
  config["shiftrt"]["adapters"].erase(0);
  ExpectRefused(config, "is of no adapter");
  WriteText(out_ / "config.json", good.dump());
  std::vector<StoredTensor> tensors = ReadTensors(out_ / "model.safetensors");
  std::erase_if(tensors, [](const StoredTensor& tensor) { return tensor.name.ends_with("up.bias"); });
  WriteText(out_ / "model.safetensors", SafetensorsBytes(tensors));
  ExpectRefused(good, "up.bias is missing");
}

TEST_F(HfLra, AFullDiskLeavesNothing) {
  const Model model = FiveLayers();
  const std::vector<std::string> before = Listing(directory_.path());
  const FileSizeLimit limit(20000);
  EXPECT_NE(WriteRefusal("hf-lra", model, EveryPlace(model)).find("cannot write it"), std::string::npos);
  EXPECT_EQ(Listing(directory_.path()), before);
}

}  // namespace
}  // namespace shiftrt
