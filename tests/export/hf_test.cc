// SPDX-License-Identifier: Apache-2.0
// Exports of the format hf: what is read back runs as the plan does, and nothing is left where anything fails.
#include "tests/export/fixture.h"
#include "tests/file_size_limit.h"
#include "tests/models/checkpoint_files.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class Hf : public ExportTest {};

TEST_F(Hf, EveryFamilyComesBackBitForBit) {
  for (const char* name : {"llama2",
                           "llama3_tied",
                           "llama_bias",
                           "mistral_window",
                           "qwen1.5",
                           "qwen2_tied",
                           "qwen2_window",
                           "qwen3",
                           "phi3",
                           "phi3_tied",
                           "gemma2",
                           "gemma2_layer_types",
                           "gemma3",
                           "gemma3_rope_parameters",
                           "ministral3",
                           "olmo2",
                           "olmo3",
                           "smollm3",
                           "granite",
                           "granite4",
                           "phi4_mini_longrope",
                           "glm4",
                           "seed_oss",
                           "exaone4",
                           "ernie4_5",
                           "starcoder2",
                           "starcoder2_erf",
                           "nemotron",
                           "cohere2",
                           "cohere2_layer_types",
                           "gemma",
                           "vaultgemma",
                           "ministral",
                           "arcee_bias",
                           "jais2",
                           "cwm",
                           "hyperclovax",
                           "hyperclovax_plain",
                           "qwen3_moe",
                           "qwen3_moe_mixed",
                           "mixtral",
                           "olmoe",
                           "qwen3_5",
                           "qwen3_5_tied",
                           "qwen2_moe",
                           "qwen2_moe_windows",
                           "qwen3_next",
                           "qwen3_5_moe",
                           "gpt_oss",
                           "gpt_oss_long",
                           "hunyuan",
                           "hunyuan_bias",
                           "apertus",
                           "apertus_plain",
                           "lfm2",
                           "lfm2_long"}) {
    SCOPED_TRACE(name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const Model model = Golden(name, dtype);
      const DepthPlan plan = Pruned(model, {1});
      Write("hf", model, plan);
      const Model opened = OpenModel(out_.string());
      const ModelConfig &before = model.weights->config, &after = opened.weights->config;
      EXPECT_EQ(after.family, before.family);
      EXPECT_EQ(after.layers, before.layers - 1);
      EXPECT_EQ(opened.weights->embedding.dtype, dtype);
      for (int64_t i = 0; i < after.layers; ++i) {
        EXPECT_EQ(after.block.Window(i), before.block.Window(plan.KeptLayers()[i]));
        EXPECT_EQ(after.block.MixerOf(i), before.block.MixerOf(plan.KeptLayers()[i]));
        EXPECT_EQ(after.block.Rope(i), before.block.Rope(plan.KeptLayers()[i]));
      }
      ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
      fs::remove_all(out_);
    }
  }
}

// LaCo's and ReplaceMe's plans: blocks with tensors of their own, among them parts of what the family stores as one.
TEST_F(Hf, BlocksWithTensorsOfTheirOwnAreFolded) {
  for (const char* name : {"qwen2_tied", "phi3"}) {
    SCOPED_TRACE(name);
    const Model model = Golden(name);
    auto own = std::make_shared<BlockWeights>(model.weights->blocks[0]);
    const Matrix<float> down = RandomMatrix(own->down.rows(), own->down.cols(), 3);
    const Matrix<float> k = RandomMatrix(own->k.rows(), own->k.cols(), 4);
    own->down.data = down.data();
    own->k.data = k.data();
    const DepthPlan plan = Pruned(model, {1}).With(0, BlockStage{.layer = 0, .own = own});
    Write("hf", model, plan);
    const Model opened = OpenModel(out_.string());
    ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
    fs::remove_all(out_);
  }
}

// A head that was tied comes apart.
TEST_F(Hf, AnOutputOfItsOwnIsTheModels) {
  for (const char* name : {"qwen2_tied", "llama2", "gemma2", "lfm2"}) {
    SCOPED_TRACE(name);
    const Model model = Golden(name, DType::kBFloat16);
    const DepthPlan plan = WithOutput(model, Pruned(model, {1}));
    for (const char* format : {"hf", "hf-lra"}) {
      Write(format, model, plan);
      EXPECT_EQ(ReadJson("config.json")["tie_word_embeddings"], false);
      const Model opened = OpenModel(out_.string());
      ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
      fs::remove_all(out_);
    }
  }
}

// The config says that the head is tied, and the file has a head with other values.
TEST_F(Hf, AStoredHeadThatDiffersIsTheModels) {
  const fs::path directory = Golden("qwen2_tied").directory;
  std::vector<StoredTensor> tensors = ReadTensors(directory / "model.safetensors");
  const auto embedding = std::find_if(tensors.begin(), tensors.end(),
                                      [](const auto& tensor) { return tensor.name == "model.embed_tokens.weight"; });
  StoredTensor head = *embedding;
  head.name = "lm_head.weight";
  head.Set(0, 7.0f);
  tensors.push_back(head);
  WriteText(directory / "model.safetensors", SafetensorsBytes(tensors));
  const Model model = OpenModel(directory.string());
  for (const char* format : {"hf", "hf-lra"}) {
    Write(format, model, Pruned(model, {1}));
    EXPECT_EQ(ReadJson("config.json")["tie_word_embeddings"], false);
    const Model opened = OpenModel(out_.string());
    ExpectSame(Logits(opened, opened.plan), Logits(model, Pruned(model, {1})));
    fs::remove_all(out_);
  }
}

TEST_F(Hf, WeightsAreWrittenInTheTypeInWhichTheyWereLoaded) {
  const Model model = Golden("llama2", DType::kFloat32, WeightType::kBFloat16);
  const DepthPlan plan = Pruned(model, {0});
  Write("hf", model, plan);
  const Model opened = OpenModel(out_.string());
  EXPECT_EQ(opened.weights->embedding.dtype, DType::kBFloat16);
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

TEST_F(Hf, ShardsAreOfTheSizeAskedFor) {
  const Model model = Golden("llama2");
  const DepthPlan plan = Pruned(model, {1});
  const int64_t embedding = model.weights->embedding.bytes();
  settings_.shard_bytes = embedding - 1;  // the embedding exceeds it, so that it stands alone
  Write("hf", model, plan);
  const Json index = ReadJson("model.safetensors.index.json");
  int64_t total = 0, shards = 0;
  for (const auto& entry : fs::directory_iterator(out_)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    const SafetensorsFile file(entry.path());
    int64_t bytes = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      bytes += tensor.bytes();
      EXPECT_EQ(index["weight_map"][name], entry.path().filename().string());
    }
    EXPECT_TRUE(bytes <= settings_.shard_bytes || file.tensors().size() == 1) << entry.path();
    total += bytes;
  }
  EXPECT_GT(shards, 2);
  EXPECT_TRUE(fs::exists(out_ / fmt::format("model-00001-of-{:05}.safetensors", shards)));
  EXPECT_EQ(index["metadata"]["total_size"], total);
  const Model opened = OpenModel(out_.string());
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

TEST_F(Hf, SettingsByLayerKeepStep) {
  Model model = Golden("gemma2_layer_types");
  const fs::path file = model.directory / "config.json";
  Json config = Json::parse(ReadFile(file));
  const int64_t layers = model.weights->config.layers;
  Json by_layer = Json::array();
  for (int64_t layer = 0; layer < layers; ++layer) by_layer.push_back(layer);
  config["bad_words_ids"] = by_layer;  // a list that nothing reads, as long as the model
  config["early_stopping"] = Json::array({1});
  config["torch_dtype"] = "float16";
  const Json types = config["layer_types"];
  WriteText(file, config.dump());
  const std::vector<std::string> notes = Write("hf", model, Pruned(model, {1}));
  ASSERT_EQ(notes.size(), size_t{1});
  EXPECT_NE(notes[0].find("bad_words_ids"), std::string::npos);
  const Json written = ReadJson("config.json");
  by_layer.erase(1);
  EXPECT_EQ(written["num_hidden_layers"], layers - 1);
  EXPECT_EQ(written["bad_words_ids"], by_layer);
  EXPECT_EQ(written["early_stopping"], config["early_stopping"]);
  EXPECT_EQ(written["torch_dtype"], "float32") << "as the weights are";
  EXPECT_EQ(written["layer_types"].size(), types.size() - 1);
  EXPECT_EQ(written["layer_types"][1], types[2]);
  EXPECT_EQ(written["architectures"], config["architectures"]);
}

TEST_F(Hf, WhatLiesNextToTheWeightsComesAlong) {
  const Model model = Golden("llama2");
  const std::vector<std::string> files = {"LICENSE", "additional_chat_templates/tool_use.jinja", "chat_template.jinja",
                                          "generation_config.json"};
  fs::create_directory(model.directory / "additional_chat_templates");
  const auto content = [](const std::string& name) { return "{\"content of\": \"" + name + "\"}"; };
  for (const std::string& name : files) WriteText(model.directory / name, content(name));
  WriteText(
      model.directory / "README.md",
      "---\nlicense: other\nlicense_name: x-community\nlicense_link: LICENSE\ntags: [a]\n---\n# X\nlicense: no\n");
  settings_.base_name = "org/original";
  Write("hf", model, Pruned(model, {1}));
  for (const std::string& name : files) EXPECT_EQ(ReadFile(out_ / name), content(name));
  const std::string card = ReadFile(out_ / "README.md");
  EXPECT_TRUE(
      card.starts_with("---\nlicense: other\nlicense_name: x-community\nlicense_link: LICENSE\n"
                       "base_model: org/original\n"))
      << card;
  EXPECT_EQ(card.find("license: no"), std::string::npos);
  EXPECT_NE(card.find("was removed by shiftrt"), std::string::npos) << card;
  EXPECT_NE(card.find("| blocks removed (numbered from 0) | 1 |"), std::string::npos) << card;
  EXPECT_NE(card.find("| criterion of the selection | bi |"), std::string::npos) << card;
}

TEST_F(Hf, WhatItCannotHoldIsRefusedByName) {
  const Model model = Golden("qwen2_tied");
  const auto refused = [&](const DepthPlan& plan, const std::string& word) {
    const std::string what = WriteRefusal("hf", model, plan);
    EXPECT_TRUE(what.starts_with("format: hf cannot hold this model: ")) << what;
    EXPECT_NE(what.find(word), std::string::npos) << what;
    EXPECT_FALSE(fs::exists(out_));
  };
  refused({{BlockStage{0}, AdapterStage{{1}, Adapter(model, 2, 1)}}},
          "its adapter for layer 1 reads the stream itself");
  refused({}, "no blocks");
  auto own = std::make_shared<BlockWeights>(model.weights->blocks[1]);
  own->down_bias = own->input_norm;
  refused({{BlockStage{0}, BlockStage{.layer = 1, .own = own}}}, "block 1 has a mlp.down_proj.bias");
  settings_.q8_0 = true;
  refused(DepthPlan::Original(model.weights->config.layers), "Q8_0");
  EXPECT_NE(Refusal([] { FindExportFormat("hff"); }).find("hf"), std::string::npos);
}

TEST_F(Hf, OnlyANewDirectoryIsWritten) {
  const Model model = Golden("llama2");
  const DepthPlan plan = Pruned(model, {1});
  WriteText(directory_.path() / "file", "x");
  fs::create_directories(out_);
  WriteText(out_ / "mine", "x");
  EXPECT_NE(WriteRefusal("hf", model, plan).find("not empty"), std::string::npos);
  EXPECT_EQ(Listing(out_), (std::vector<std::string>{"mine"}));
  fs::remove(out_ / "mine");
  out_ /= "";  // an empty directory, named with a slash after it
  Write("hf", model, plan);
  EXPECT_TRUE(fs::exists(out_ / "config.json"));
  out_ = directory_.path() / "file";
  EXPECT_NE(WriteRefusal("hf", model, plan).find("not a directory"), std::string::npos);
  EXPECT_EQ(ReadFile(out_), "x");
}

TEST_F(Hf, AFullDiskLeavesNothing) {
  const Model model = Golden("llama2");
  const std::vector<std::string> before = Listing(directory_.path());
  out_ = directory_.path() / "new/and/deep";
  for (const rlim_t room : {rlim_t{0}, rlim_t{600}, rlim_t{20000}}) {
    const FileSizeLimit limit(room);
    EXPECT_NE(WriteRefusal("hf", model, Pruned(model, {1})).find("cannot write it"), std::string::npos) << room;
    EXPECT_EQ(Listing(directory_.path()), before) << room;
  }
}

// Stops at the beginning of a phase.
class Stopping : public NoProgress {
 public:
  explicit Stopping(std::string phase) : phase_(std::move(phase)) {}
  void Begin(std::string_view phase, int64_t) override {
    if (phase.starts_with(phase_)) throw Interrupted();
  }

 private:
  std::string phase_;
};

TEST_F(Hf, AnInterruptionLeavesNothing) {
  const Model model = Golden("llama2");
  const std::vector<std::string> before = Listing(directory_.path());
  for (const char* phase : {"writing", "reading back"}) {
    Stopping stopping(phase);
    progress_ = &stopping;
    EXPECT_THROW(Write("hf", model, Pruned(model, {1})), Interrupted) << phase;
    EXPECT_EQ(Listing(directory_.path()), before) << phase;
  }
}

// The check at the end finds a file that is not what was meant: here the config changes behind the writer's back.
TEST_F(Hf, WhatDoesNotReadBackIsNotKept) {
  const Model model = Golden("llama2");
  const fs::path file = model.directory / "config.json";
  Json config = Json::parse(ReadFile(file));
  const std::vector<std::string> before = Listing(directory_.path());
  config["rms_norm_eps"] = 0.1;
  WriteText(file, config.dump());
  EXPECT_NE(WriteRefusal("hf", model, Pruned(model, {1})).find("does not run as the plan does"), std::string::npos);
  EXPECT_EQ(Listing(directory_.path()), before);
}

}  // namespace
}  // namespace shiftrt
