// SPDX-License-Identifier: Apache-2.0
// Exports of the format gguf: what is read back runs as the plan does, with the original's tokenizer.
#include "models/gguf.h"

#include <cstring>
#include <fstream>

#include "models/gguf_architectures.h"
#include "runtime/gguf_writer.h"
#include "tests/export/fixture.h"
#include "tests/models/mx_experts.h"
#include "tokenizers/chat_template.h"
#include "tokenizers/gguf.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class GgufExport : public ExportTest {
 protected:
  fs::path File() const { return out_ / "model.gguf"; }
  // A model with a vocabulary of 600 and the tokenizer of a golden.
  Model WithTokenizer(const std::string& architecture, const std::string& tokenizer) const {
    const fs::path directory = directory_.path() / tokenizer;
    WriteText(
        directory_.path() / "config.json",
        fmt::format(R"({{"architectures": ["{}"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 600, "max_position_embeddings": 64,
      "tie_word_embeddings": true}})",
                    architecture));
    WriteRandomCheckpoint(directory_.path() / "config.json", DType::kBFloat16, 1, directory);
    for (const auto& entry : fs::directory_iterator(TestDirectory() / "goldens/tokenizers" / tokenizer))
      if (entry.path().filename() != "config.json") fs::copy(entry.path(), directory);
    return OpenModel(directory.string());
  }
};

TEST_F(GgufExport, EveryFamilyComesBackBitForBit) {
  for (const char* name : {"llama2",
                           "llama_bias",
                           "llama_linear",
                           "llama_wide_heads",
                           "llama_yarn",
                           "mistral",
                           "qwen1.5",
                           "qwen2_tied",
                           "qwen3",
                           "qwen3_tied",
                           "phi3_tied",
                           "cohere",
                           "cohere2",
                           "ernie4_5",
                           "glm4",
                           "granite",
                           "granite4",
                           "granite4_nope",
                           "ministral3",
                           "mistral_small",
                           "nemotron",
                           "olmo2",
                           "olmo3",
                           "phi3_longrope",
                           "phi4_mini_longrope",
                           "seed_oss",
                           "gemma",
                           "arcee",
                           "qwen3_moe",
                           "olmoe",
                           "qwen2_moe",
                           "hunyuan",
                           "apertus",
                           "lfm2",
                           "lfm2_long"}) {
    SCOPED_TRACE(name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const Model model = Golden(name, dtype);
      const DepthPlan plan = Pruned(model, {1});
      if (const std::string why = WhyNot(FindExportFormat("gguf"), model, plan); !why.empty()) {
        ADD_FAILURE() << why;
        continue;
      }
      Write("gguf", model, plan);
      EXPECT_EQ(Listing(out_), (std::vector<std::string>{"README.md", "model.gguf"}));
      const Model opened = OpenModel(File().string());
      EXPECT_EQ(opened.weights->config.layers, model.weights->config.layers - 1);
      EXPECT_EQ(opened.weights->embedding.dtype, dtype);
      EXPECT_EQ(opened.weights->final_norm.dtype, DType::kFloat32);
      ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
      fs::remove_all(out_);
    }
  }
}

TEST_F(GgufExport, ADirectoryFromAFileHasTheTokensThatEndAReply) {
  const Model model = WithTokenizer("LlamaForCausalLM", "sentencepiece");
  Write("gguf", model, model.plan);
  const fs::path kept = directory_.path() / "kept.gguf";
  fs::rename(File(), kept);
  fs::remove_all(out_);
  const Model opened = OpenModel(kept.string());
  Write("hf", opened, opened.plan);
  EXPECT_EQ(ReadJson("generation_config.json")["eos_token_id"], ReadJson("config.json")["eos_token_id"]);
  EXPECT_FALSE(ReadJson("generation_config.json")["eos_token_id"].is_null());
}

// Golden models that llama.cpp has no place for, changed so that it has one.
TEST_F(GgufExport, EverySettingComesBack) {
  const std::pair<const char*, const char*> cases[] = {
      {"gemma2", R"({"query_pre_attn_scalar": 16})"},
      {"gemma3", R"({"query_pre_attn_scalar": 16})"},
      {"gemma3_rope_parameters", R"({"query_pre_attn_scalar": 16})"},
      {"exaone4_full", R"({"head_dim": 12})"},
      {"glm", R"({"head_dim": 12})"},
      {"smollm3",
       R"({"num_hidden_layers": 5, "no_rope_layers": null, "layer_types": null, "no_rope_layer_interval": 4})"},
      {"starcoder2", R"({"sliding_window": null})"},
      {"olmo2_grouped", R"({"attention_bias": false})"},
      {"mixtral", R"({"sliding_window": null})"},
      {"gpt_oss", R"({"swiglu_alpha": 1.702, "swiglu_limit": 7})"},
      {"gpt_oss_long", R"({"attention_bias": true})"},
      {"apertus_plain", R"({"tie_word_embeddings": false})"},
  };
  for (const auto& [name, patch] : cases) {
    SCOPED_TRACE(name);
    Json config;
    std::ifstream(GoldenModel(name) / "config.json") >> config;
    config.update(Json::parse(patch));
    WriteText(directory_.path() / "config.json", config.dump());
    WriteRandomCheckpoint(directory_.path() / "config.json", DType::kBFloat16, 1, directory_.path() / name);
    const Model model = OpenModel((directory_.path() / name).string());
    Write("gguf", model, model.plan);
    const Model opened = OpenModel(File().string());
    ExpectSame(Logits(opened, opened.plan), Logits(model, model.plan));
    fs::remove_all(out_);
  }
}

// Experts in MXFP4 keep their blocks in GGUF, and are written in bfloat16 to a directory of Hugging Face. The layers
// that stay no longer alternate, which the file lists.
TEST_F(GgufExport, MxFp4ExpertsComeBack) {
  const MxExperts files(directory_.path() / "model", 4);
  const Model model = OpenModel(files.path.string());
  const DepthPlan plan = Pruned(model, {1});
  Write("gguf", model, plan);
  const Model opened = OpenModel(File().string());
  for (int64_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(opened.weights->config.block.Window(layer), layer == 2 ? 0 : 128);
    for (const auto tensor : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down}) {
      const TensorView &found = opened.weights->blocks[layer].experts[1].*tensor,
                       &expected = model.weights->blocks[layer].experts[1].*tensor;
      ASSERT_EQ(found.dtype, DType::kMXFP4);
      EXPECT_EQ(std::memcmp(found.data, expected.data, static_cast<size_t>(expected.bytes())), 0);
    }
  }
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
  fs::remove_all(out_);
  const Model expanded = OpenModel(files.path.string(), {.dtype = WeightType::kBFloat16});
  Write("hf", model, plan);
  EXPECT_FALSE(ReadJson("config.json").contains("quantization_config"));
  const Model directory = OpenModel(out_.string());
  EXPECT_EQ(directory.weights->blocks[0].experts[0].up.dtype, DType::kBFloat16);
  ExpectSame(Logits(directory, directory.plan), Logits(expanded, plan));
}

// llama.cpp has no place for these settings.
TEST_F(GgufExport, OtherSettingsOfLaterFamiliesAreRefused) {
  for (const auto& [name, word] : {std::pair("hunyuan_bias", "has no tensor for self_attn.q_proj.bias"),
                                   {"apertus_plain", "tensor output.weight is missing"}}) {
    const Model model = Golden(name);
    const std::string why = WhyNot(FindExportFormat("gguf"), model, model.plan);
    EXPECT_NE(why.find(word), std::string::npos) << why;
  }
  // A model that no layer of attention is left of has no list of key-value heads that llama.cpp reads.
  const Model model = Golden("lfm2_long");
  const std::string why = WhyNot(FindExportFormat("gguf"), model, Pruned(model, {2}));
  EXPECT_NE(why.find("head_count_kv has no layer with attention"), std::string::npos) << why;
}

// llama.cpp's unit, and its file, have one form alone.
TEST_F(GgufExport, OtherSettingsOfGptOssAreRefused) {
  for (const auto& [name, word] : {std::pair("gpt_oss", "other MLPs"), {"gpt_oss_long", "biases of the attention"}}) {
    const Model model = Golden(name);
    const std::string why = WhyNot(FindExportFormat("gguf"), model, model.plan);
    EXPECT_NE(why.find(word), std::string::npos) << why;
  }
}

// The heads of keys and values are equally wide in llama.cpp. Two removed layers leave an order that the file lists.
TEST_F(GgufExport, GatedDeltaNetworksComeBack) {
  for (const char* name : {"qwen3_5", "qwen3_next", "qwen3_5_moe"}) {
    SCOPED_TRACE(name);
    Json config;
    std::ifstream(GoldenModel(name) / "config.json") >> config;
    config.update({{"linear_key_head_dim", 8}, {"linear_value_head_dim", 8}, {"linear_num_value_heads", 6}});
    config.erase("mlp_only_layers");
    WriteText(directory_.path() / "config.json", config.dump());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      WriteRandomCheckpoint(directory_.path() / "config.json", dtype, 1, directory_.path() / name);
      const Model model = OpenModel((directory_.path() / name).string());
      const DepthPlan plan = Pruned(model, {1});
      Write("gguf", model, plan);
      const Model opened = OpenModel(File().string());
      for (int64_t i = 0; i < 3; ++i)
        EXPECT_EQ(opened.weights->config.block.MixerOf(i), i == 1 ? Mixer::kAttention : Mixer::kGatedDelta);
      const TensorView &found = opened.weights->blocks[0].o, &expected = model.weights->blocks[0].o;
      EXPECT_EQ(found.dtype, dtype);
      EXPECT_EQ(std::memcmp(found.data, expected.data, static_cast<size_t>(expected.bytes())), 0);
      const Matrix<float> a = Logits(opened, opened.plan), b = Logits(model, plan);
      for (int64_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(a.data()[i], b.data()[i], dtype == DType::kFloat32 ? 2e-4 : 0.1);
      fs::remove_all(out_);
      fs::remove_all(directory_.path() / name);
    }
  }
}

// Numbers of the blocks are lists of the metadata.
TEST_F(GgufExport, NumbersOfBlocksAreListed) {
  const Model model = Golden("apertus", DType::kBFloat16);
  const DepthPlan plan = Pruned(model, {1});
  Write("gguf", model, plan);
  const GgufFile file(File());
  const std::vector<float> numbers = file.metadata().Numbers("xielu.alpha_n");
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_EQ(numbers[1], static_cast<float>(*static_cast<const BFloat16*>(model.weights->blocks[2].xielu_n.data)));
  EXPECT_EQ(file.metadata().Numbers("xielu.beta"), (std::vector<float>{0.5f, 0.5f}));
  for (const int count : {1, 0}) {
    GgufWriter writer;
    std::string data;
    for (const auto& [key, value] : file.metadata().values())
      if (key != "xielu.alpha_n") writer.AddCopy(key, value);
    if (count > 0) writer.AddNumbers("xielu.alpha_n", {numbers[0]});
    for (const auto& [name, tensor] : file.tensors()) {
      writer.AddTensor(name, tensor.shape, static_cast<BlockType>(tensor.type->code));
      data.append(reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes));
      data += GgufWriter::Padding(tensor.bytes);
    }
    const fs::path other = directory_.path() / "other.gguf";
    WriteText(other, writer.header() + data);
    try {
      OpenModel(other.string());
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what())
                    .find(count > 0 ? "xielu.alpha_n has 1 numbers for 2 blocks" : "xielu.alpha_n is missing"),
                std::string::npos)
          << error.what();
    }
  }
}

// The golden of Qwen 3.5 with keys and values of one width, as an exported file.
class GatedDeltaGguf : public GgufExport {
 protected:
  void SetUp() override {
    GgufExport::SetUp();
    Json config;
    std::ifstream(GoldenModel("qwen3_5") / "config.json") >> config;
    config.update({{"linear_key_head_dim", 8}, {"linear_value_head_dim", 8}});
    WriteText(directory_.path() / "config.json", config.dump());
    WriteRandomCheckpoint(directory_.path() / "config.json", DType::kFloat32, 1, directory_.path() / "delta");
    model_ = OpenModel((directory_.path() / "delta").string());
    Write("gguf", model_, model_.plan);
  }
  Model model_;
};

// A file has -exp(A_log), which is below 0.
TEST_F(GatedDeltaGguf, DecaysThatGrowAreRefused) {
  std::string content = ReadFile(File());
  const float decay = DecayInGguf(static_cast<const float*>(model_.weights->blocks[0].delta_a_log.data)[0]);
  const float growth = 0.5F;
  const size_t at = content.find(std::string(reinterpret_cast<const char*>(&decay), sizeof decay));
  ASSERT_NE(at, std::string::npos);
  content.replace(at, sizeof growth, reinterpret_cast<const char*>(&growth), sizeof growth);
  WriteText(File(), content);
  try {
    OpenModel(File().string());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.gguf: tensor blk.0.ssm_a has 0.5, expected numbers below 0"),
              std::string::npos)
        << error.what();
  }
}

// Files of llama.cpp's converter count blocks that predict several tokens among the model's.
TEST_F(GatedDeltaGguf, BlocksThatPredictSeveralTokensAreLeftOut) {
  const GgufFile file(File());
  const int64_t layers = model_.weights->config.layers;
  GgufWriter writer;
  for (const auto& [key, value] : file.metadata().values())
    if (key != "qwen35.block_count") writer.AddCopy(key, value);
  writer.AddInteger("qwen35.block_count", layers + 1);
  writer.AddInteger("qwen35.nextn_predict_layers", 1);
  std::string data;
  const auto add = [&](const std::string& name, const GgufTensor& tensor) {
    writer.AddTensor(name, tensor.shape, BlockType::kF32);
    data.append(reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes));
    data += GgufWriter::Padding(tensor.bytes);
  };
  for (const auto& [name, tensor] : file.tensors()) add(name, tensor);
  add(fmt::format("blk.{}.nextn.enorm.weight", layers), file.tensors().at("output_norm.weight"));
  const fs::path longer = directory_.path() / "longer.gguf";
  WriteText(longer, writer.header() + data);
  const Model opened = OpenModel(longer.string()), before = OpenModel(File().string());
  EXPECT_EQ(opened.weights->config.layers, layers);
  ExpectSame(Logits(opened, opened.plan), Logits(before, before.plan));
}

// LaCo's and ReplaceMe's plans; the keys of a Llama are stored in another order.
TEST_F(GgufExport, BlocksWithTensorsOfTheirOwnAreFolded) {
  const Model model = Golden("llama2");
  auto own = std::make_shared<BlockWeights>(model.weights->blocks[0]);
  const Matrix<float> down = RandomMatrix(own->down.rows(), own->down.cols(), 3);
  const Matrix<float> k = RandomMatrix(own->k.rows(), own->k.cols(), 4);
  own->down.data = down.data();
  own->k.data = k.data();
  const DepthPlan plan = Pruned(model, {1}).With(0, BlockStage{.layer = 0, .own = own});
  Write("gguf", model, plan);
  const Model opened = OpenModel(File().string());
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

TEST_F(GgufExport, AnOutputOfItsOwnIsTheModels) {
  const Model model = Golden("qwen2_tied");
  const DepthPlan plan = WithOutput(model, Pruned(model, {1}));
  Write("gguf", model, plan);
  const Model opened = OpenModel(File().string());
  EXPECT_FALSE(opened.weights->config.tied_head);
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
}

// The settings come back from the factors that llama.cpp stores, which are those of the frequencies.
TEST_F(GgufExport, Llama3Scaling) {
  for (const int original : {8192, 512, 1000}) {
    SCOPED_TRACE(original);
    const fs::path directory = directory_.path() / std::to_string(original);
    WriteText(directory_.path() / "config.json",
              fmt::format(R"({{"architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 60, "max_position_embeddings": 4096,
      "rope_theta": 500000.0, "rope_scaling": {{"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
      "high_freq_factor": {}, "original_max_position_embeddings": {}}}}})",
                          original == 1000 ? 6.5 : 4.0, original));
    WriteRandomCheckpoint(directory_.path() / "config.json", DType::kFloat32, 1, directory);
    const Model model = OpenModel(directory.string());
    if (const std::string why = WhyNot(FindExportFormat("gguf"), model, model.plan); !why.empty()) {
      ADD_FAILURE() << why;
      continue;
    }
    Write("gguf", model, model.plan);
    const ModelConfig found = OpenModel(File().string()).weights->config;
    EXPECT_EQ(found.rope.original_max_positions, original);
    EXPECT_EQ(MakeRopeFrequencies(found).inverse, MakeRopeFrequencies(model.weights->config).inverse);
    fs::remove_all(out_);
  }
}

TEST_F(GgufExport, Q8) {
  const Model model = WithTokenizer("LlamaForCausalLM", "sentencepiece");
  settings_.q8_0 = true;
  const DepthPlan plan = Pruned(model, {0});
  EXPECT_TRUE(Write("gguf", model, plan).empty());
  const GgufFile file(File());
  const GgufTensor& up = file.tensors().at("blk.0.ffn_up.weight");
  EXPECT_STREQ(up.type->name, "Q8_0");
  const TensorView& original = model.weights->blocks[1].up;
  std::vector<float> values(original.elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<const BFloat16*>(original.data)[i]);
  std::vector<std::byte> expected(static_cast<size_t>(up.bytes));
  bool finite = true;
  EncodeBlocks(BlockType::kQ8_0, values.data(), std::ssize(values), expected.data(), finite);
  EXPECT_EQ(std::memcmp(up.data, expected.data(), expected.size()), 0);
  EXPECT_STREQ(file.tensors().at("blk.0.ffn_norm.weight").type->name, "F32");
  EXPECT_EQ(file.metadata().Integer("general.file_type", 0, 100), 7);
}

// An export of numbers that were decoded from a quantised file says so.
TEST_F(GgufExport, AnExportOfAQuantisedFileNamesItsTypes) {
  settings_.q8_0 = true;
  const Model original = WithTokenizer("LlamaForCausalLM", "sentencepiece");
  EXPECT_EQ(QuantisationOf(original.directory), "");
  Write("gguf", original, original.plan);
  const fs::path quantised = directory_.path() / "quantised.gguf";
  fs::rename(File(), quantised);
  fs::remove_all(out_);
  settings_.q8_0 = false;
  EXPECT_EQ(QuantisationOf(quantised), "Q8_0");
  for (const char* format : {"hf", "gguf"}) {
    LoadOptions options;
    options.dtype = WeightType::kExpanded;
    const Model opened = OpenModel(quantised.string(), options);
    const std::vector<std::string> notes = Write(format, opened, opened.plan);
    EXPECT_TRUE(std::any_of(notes.begin(), notes.end(),
                            [](const std::string& note) { return note.find("dequantised from Q8_0") != note.npos; }));
    EXPECT_NE(ReadFile(out_ / "README.md").find("| dequantised from | Q8_0 |"), std::string::npos);
    if (format == std::string("gguf")) {
      EXPECT_EQ(GgufFile(File()).metadata().Text("general.description"), "dequantised from Q8_0");
    }
    fs::remove_all(out_);
  }
}

// Quantised tensors that were not expanded leave as they came, less the removed block. Llama's queries and keys have
// another order in memory than in the file. A directory for transformers has no quantised tensors.
TEST_F(GgufExport, QuantisedTensorsLeaveAsTheyCame) {
  settings_.q8_0 = true;
  const Model original = WithTokenizer("LlamaForCausalLM", "sentencepiece");
  Write("gguf", original, original.plan);
  const fs::path quantised = directory_.path() / "quantised.gguf";
  fs::rename(File(), quantised);
  fs::remove_all(out_);
  settings_.q8_0 = false;
  const Model opened = OpenModel(quantised.string());
  ASSERT_TRUE(IsQuantised(opened.weights->blocks[0].q.dtype));
  const std::vector<int64_t> removed = {0};
  const DepthPlan pruned = DepthPlan::Pruned(opened.weights->config.layers, removed);
  const std::vector<std::string> notes = Write("gguf", opened, pruned);
  EXPECT_FALSE(std::any_of(notes.begin(), notes.end(),
                           [](const std::string& note) { return note.find("dequantised") != note.npos; }));
  const GgufFile before(quantised), after(File());
  EXPECT_EQ(after.metadata().Integer("general.file_type", 0, 100, -1), 7);
  for (const char* name : {"attn_q.weight", "attn_k.weight", "ffn_down.weight"}) {
    const GgufTensor &from = before.tensors().at(fmt::format("blk.1.{}", name)),
                     &to = after.tensors().at(fmt::format("blk.0.{}", name));
    ASSERT_EQ(from.type, to.type) << name;
    EXPECT_EQ(std::memcmp(from.data, to.data, static_cast<size_t>(from.bytes)), 0) << name;
  }
  fs::remove_all(out_);
  Write("hf", opened, pruned);
  const SafetensorsFile directory(out_ / "model.safetensors");
  EXPECT_EQ(directory.tensors().at("model.layers.0.self_attn.q_proj.weight").dtype, DType::kBFloat16);
}

// Converters write the head of some models twice. Where both tensors are equal, the head is the embedding table.
TEST_F(GgufExport, AHeadThatIsTheEmbeddingTableIsTied) {
  const Model original = Golden("qwen2_tied");
  for (const bool equal : {true, false}) {
    SCOPED_TRACE(equal);
    const auto output = std::make_shared<OwnOutput>(*original.weights, original.plan);
    std::vector<float> head(original.weights->embedding.elements());
    std::copy_n(static_cast<const float*>(original.weights->embedding.data), head.size(), head.begin());
    if (!equal) head.back() += 1;
    output->Replace(&OutputWeights::head, head);
    DepthPlan plan = original.plan;
    plan.output = OwnOutput::Share(output);
    Write("gguf", original, plan);
    ASSERT_TRUE(GgufFile(File()).tensors().contains(kGgufHead));
    const fs::path twice = directory_.path() / "twice.gguf";
    fs::rename(File(), twice);
    fs::remove_all(out_);

    const Model opened = OpenModel(twice.string());
    EXPECT_EQ(opened.weights->config.tied_head, equal);
    EXPECT_EQ(opened.plan.Parameters(*opened.weights),
              original.plan.Parameters(*original.weights) + (equal ? 0 : std::ssize(head)));
    ExpectSame(Logits(opened, opened.plan), Logits(original, plan));
    Write("hf", opened, opened.plan);
    EXPECT_EQ(ReadJson("config.json")["tie_word_embeddings"], equal);
    ExpectSame(Logits(OpenModel(out_.string()), opened.plan), Logits(original, plan));
    fs::remove_all(out_);
  }
}

TEST_F(GgufExport, RowsThatAreNotWholeBlocksAreSaid) {
  settings_.q8_0 = true;
  const Model model = Golden("llama2");  // hidden 48
  const std::vector<std::string> notes = Write("gguf", model, model.plan);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("no tokenizer"), std::string::npos);
  EXPECT_NE(notes[1].find("are stored as F16"), std::string::npos);
  EXPECT_STREQ(GgufFile(File()).tensors().at("blk.0.ffn_up.weight").type->name, "F16");
}

// llama.cpp does not load a file with more tokens than rows.
TEST_F(GgufExport, TokensWithoutARowAreLeftOut) {
  const Model whole = WithTokenizer("LlamaForCausalLM", "llama3-json");
  Json tokenizer = Json::parse(ReadFile(whole.directory / "tokenizer.json"));
  Json more = tokenizer["added_tokens"].back();
  more["id"] = 600;
  more["content"] = "<more>";
  tokenizer["added_tokens"].push_back(more);
  WriteText(whole.directory / "tokenizer.json", tokenizer.dump());
  const Model model = OpenModel(whole.directory.string());
  const std::vector<std::string> notes = Write("gguf", model, model.plan);
  ASSERT_FALSE(notes.empty());
  EXPECT_EQ(notes.back(), "The model's embedding has 600 rows and none for the tokens <more>, which are left out.");
  EXPECT_EQ(OpenModel(File().string()).tokenizer->vocab_size(), 600);
}

TEST_F(GgufExport, TokensBeforeATextThatAreNotBosAreSaid) {
  const Model whole = WithTokenizer("LlamaForCausalLM", "llama3-json");
  Json tokenizer = Json::parse(ReadFile(whole.directory / "tokenizer.json"));
  Json& single = tokenizer["post_processor"]["processors"][1]["single"];
  Json end = single[0];
  end["SpecialToken"]["id"] = "<|end|>";
  single.insert(single.begin(), end);
  WriteText(whole.directory / "tokenizer.json", tokenizer.dump());
  const Model model = OpenModel(whole.directory.string());
  EXPECT_EQ(model.tokenizer->prefix().size(), 2u);
  const std::vector<std::string> notes = Write("gguf", model, model.plan);
  ASSERT_FALSE(notes.empty());
  EXPECT_EQ(notes.back(),
            "Texts begin with <|end|><|begin|>, which GGUF cannot say: put these tokens before a prompt.");
  EXPECT_FALSE(OpenModel(File().string()).tokenizer->adds_bos());
}

// Weights need no tokenizer: a file with a pre-tokenizer that is not known is exported, and what is missing is said.
TEST_F(GgufExport, ATokenizerThatIsNotKnownIsCopiedOrSaid) {
  const Model model = WithTokenizer("LlamaForCausalLM", "llama3-json");
  Write("gguf", model, model.plan);
  std::string bytes = ReadFile(File());
  bytes.replace(bytes.find("llama-bpe", bytes.find("tokenizer.ggml.pre")), 9, "other-bpe");
  const fs::path kept = directory_.path() / "kept.gguf";
  WriteText(kept, bytes);
  fs::remove_all(out_);
  const Model opened = OpenModel(kept.string());
  EXPECT_THROW(opened.RequireTokenizer(), Error);
  Write("gguf", opened, opened.plan);
  EXPECT_EQ(GgufFile(File()).metadata().Text("tokenizer.ggml.pre"), "other-bpe");
  fs::remove_all(out_);
  const std::vector<std::string> notes = Write("hf", opened, opened.plan);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("There is no tokenizer in the directory"), std::string::npos);
  EXPECT_NE(notes[0].find("tokenizer.ggml.pre other-bpe is not supported"), std::string::npos);
  EXPECT_FALSE(OpenModel(out_.string()).tokenizer);
}

TEST_F(GgufExport, TokenizersGiveTheSameIds) {
  Json expected;
  std::ifstream(TestDirectory() / "goldens/tokenizers/expected.json") >> expected;
  const std::vector<std::string> texts = expected["texts"];
  const std::pair<const char*, const char*> cases[] = {
      {"LlamaForCausalLM", "sentencepiece"}, {"LlamaForCausalLM", "llama3-json"}, {"Qwen2ForCausalLM", "qwen2"}};
  for (const auto& [architecture, tokenizer] : cases) {
    SCOPED_TRACE(tokenizer);
    const Model model = WithTokenizer(architecture, tokenizer);
    const auto notes = Write("gguf", model, model.plan);
    EXPECT_EQ(notes.empty(), std::string_view(tokenizer) != "llama3-json");  // its <mask> takes the spaces next to it
    const Model opened = OpenModel(File().string());
    EXPECT_EQ(opened.tokenizer->vocab_size(), 600);
    EXPECT_EQ(opened.tokenizer->adds_bos(), model.tokenizer->adds_bos());
    EXPECT_EQ(opened.tokenizer->eos_token(), model.tokenizer->eos_token());
    for (const std::string& text : texts) {
      if (text.find("<mask>") == std::string::npos) {
        EXPECT_EQ(opened.tokenizer->EncodeWithBos(text), model.tokenizer->EncodeWithBos(text)) << text;
      }
    }
    // Values that were read from a GGUF file are written to the next one unchanged.
    const fs::path first = directory_.path() / "first.gguf";
    fs::copy_file(File(), first, fs::copy_options::overwrite_existing);
    fs::remove_all(out_);
    const Model again = OpenModel(first.string());
    Write("gguf", again, again.plan);
    EXPECT_EQ(GgufFile(File()).metadata().Texts("tokenizer.ggml.tokens"),
              GgufFile(first).metadata().Texts("tokenizer.ggml.tokens"));
    fs::remove_all(out_);
  }
}

// The settings that GGUF has come back, and there is a note about the others.
TEST_F(GgufExport, SettingsOfSentencePieceThatGgufHasNoPlaceForAreNotes) {
  const Model model = WithTokenizer("LlamaForCausalLM", "sentencepiece");
  const auto write = [&](const std::string& settings) {
    WriteText(model.directory / "tokenizer_config.json", settings);
    fs::remove_all(out_);
    const Model opened = OpenModel(model.directory.string());
    return Write("gguf", opened, opened.plan);
  };
  const auto read = [&](const char* text) { return OpenModel(File().string()).RequireTokenizer().Encode(text); };
  const auto tokens_of_own = [&](const char* text) { return LoadTokenizer(model.directory)->Encode(text); };
  const auto has_space = [&] { return GgufFile(File()).metadata().Flag("tokenizer.ggml.add_space_prefix", false); };
  EXPECT_TRUE(write(R"({"legacy": true})").empty());
  EXPECT_TRUE(write(R"({"add_prefix_space": false})").empty());
  EXPECT_FALSE(has_space());
  for (const char* text : {"the keeper", "<s>the sea</s> the sea", " a"}) EXPECT_EQ(read(text), tokens_of_own(text));
  std::vector<std::string> notes = write(R"({"legacy": false})");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("legacy is false"), std::string::npos) << notes[0];
  EXPECT_TRUE(has_space());
  EXPECT_EQ(read("the keeper"), tokens_of_own("the keeper"));
  EXPECT_NE(read("<s>the sea"), tokens_of_own("<s>the sea"));
  // Special tokens that take the spaces after them, as in Phi-3.
  notes = write(R"({"added_tokens_decoder": {"1": {"content": "<s>", "rstrip": true, "special": true}}})");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("takes the spaces beside it"), std::string::npos) << notes[0];
  // A tokenizer.json as transformers 5 saves it, with a token that tokenizer.model lacks.
  Json root;
  std::ifstream(TestDirectory() / "goldens/tokenizers/metaspace-json/tokenizer.json") >> root;
  root["added_tokens"].push_back({{"id", 550}, {"content", "<|turn|>"}, {"special", true}, {"normalized", false}});
  WriteText(model.directory / "tokenizer.json", root.dump());
  notes = write("{}");
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("begins with a space"), std::string::npos) << notes[0];
  EXPECT_EQ(read("the keeper"), tokens_of_own("the keeper"));
  EXPECT_EQ(read("the<|turn|>"), tokens_of_own("the<|turn|>"));
  // A tokenizer.json of another vocabulary is refused.
  root["model"]["merges"] = Json::array();
  WriteText(model.directory / "tokenizer.json", root.dump());
  fs::remove_all(out_);
  const Model other = OpenModel(model.directory.string());
  EXPECT_NE(WriteRefusal("gguf", other, other.plan).find("than this file, which is what GGUF holds"),
            std::string::npos);
}

TEST_F(GgufExport, EveryTokenThatEndsAReplyHasAPlaceOrANote) {
  const Model model = WithTokenizer("LlamaForCausalLM", "sentencepiece");
  const int32_t text = model.tokenizer->eos_token();
  const auto write = [&](const std::vector<int32_t>& ends) {
    WriteText(model.directory / "generation_config.json", Json{{"eos_token_id", ends}}.dump());
    fs::remove_all(out_);
    const Model opened = OpenModel(model.directory.string());
    return Write("gguf", opened, opened.plan);
  };
  const auto found = [&] { return OpenModel(File().string()).weights->config.eos_tokens; };
  EXPECT_TRUE(write({text}).empty());
  EXPECT_EQ(found(), std::vector<int32_t>{text});
  EXPECT_FALSE(GgufFile(File()).metadata().Has("tokenizer.ggml.eot_token_id"));
  EXPECT_TRUE(write({text, 300}).empty());
  EXPECT_EQ(found(), (std::vector<int32_t>{text, 300}));
  EXPECT_EQ(GgufFile(File()).metadata().Integer("tokenizer.ggml.eot_token_id", 0, 600), 300);
  const std::vector<std::string> notes = write({301, text, 302});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("Token 302 "), std::string::npos) << notes[0];
  EXPECT_NE(notes[0].find("which is token 301"), std::string::npos) << notes[0];
  EXPECT_EQ(found(), (std::vector<int32_t>{text, 301}));
  // A token whose text ends a reply leaves the key to another one.
  WriteText(model.directory / "added_tokens.json", R"({"<|im_end|>": 520, "<turn:end>": 521})");
  EXPECT_TRUE(write({520, 521, text}).empty());
  EXPECT_EQ(found(), (std::vector<int32_t>{text, 521, 520}));
  EXPECT_TRUE(write({520}).empty());
  EXPECT_EQ(GgufFile(File()).metadata().Integer("tokenizer.ggml.eot_token_id", 0, 600), 520);
}

TEST_F(GgufExport, NamedChatTemplatesAreFound) {
  const Model model = WithTokenizer("LlamaForCausalLM", "sentencepiece");
  const auto written = [&] {
    Write("gguf", model, model.plan);
    const std::string text = GgufChatTemplate(GgufFile(File()));
    fs::remove_all(out_);
    return text;
  };
  EXPECT_EQ(written(), "");
  WriteText(model.directory / "chat_template.json", R"({"chat_template": "beside"})");
  EXPECT_EQ(written(), "beside");
  WriteText(model.directory / "tokenizer_config.json",
            R"({"chat_template": [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]})");
  EXPECT_EQ(written(), "b");
  fs::create_directory(model.directory / "additional_chat_templates");
  WriteText(model.directory / "additional_chat_templates/rag.jinja", "c");
  EXPECT_EQ(FurtherTemplates(model.directory), (std::vector<std::string>{"rag", "tools"}));
  Write("gguf", model, model.plan);
  EXPECT_NE(ReadFile(out_ / "README.md").find("those called rag, tools are left out"), std::string::npos);
}

TEST_F(GgufExport, WhatItCannotHoldIsRefused) {
  const auto expect_refused = [&](const Model& model, const DepthPlan& plan, const std::string& word) {
    const std::string what = WriteRefusal("gguf", model, plan);
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
    EXPECT_FALSE(fs::exists(out_));
  };
  const Model gemma = Golden("gemma2"), window = Golden("mistral_window"), llama = Golden("llama2");
  expect_refused(gemma, gemma.plan, "llama.cpp's architecture gemma2 has other scale of attention scores");
  expect_refused(window, window.plan, "attend to a window");
  const std::pair<const char*, const char*> others[] = {
      {"starcoder2_erf", "llama.cpp's architecture starcoder2 has other MLPs"},
      {"starcoder2", "attend to a window"},
      {"smollm3", "llama.cpp's architecture smollm3 has other order of layers without rotary embedding"},
      {"olmo2_grouped", "llama.cpp's architecture olmo2 has no tensor for self_attn.o_proj.bias"},
      {"glm", "heads have 16 dimensions, expected 12"},
  };
  for (const auto& [name, word] : others) {
    const Model other = Golden(name);
    expect_refused(other, other.plan, word);
  }
  const Model granite = Golden("granite4");
  EXPECT_NE(WriteRefusal("hf-lra", granite, granite.plan).find("family granite4"), std::string::npos);
  EXPECT_NE(WriteRefusal("hf-lra", granite, granite.plan).find("Formats that can: hf, gguf"), std::string::npos);
  // However the model is pruned, so that it is known before any plan.
  const auto refused = [](const Model& model, const char* format) {
    return Refusal([&] { CheckFormat(FindExportFormat(format), model.weights->config, {}); });
  };
  EXPECT_NE(refused(granite, "hf-lra").find("Formats that can: hf, gguf"), std::string::npos);
  EXPECT_NE(refused(Golden("nemotron"), "mergekit").find("no definition of family nemotron"), std::string::npos);
  CheckFormat(FindExportFormat("gguf"), gemma.weights->config, {});
  EXPECT_THROW(CheckFormat(FindExportFormat("hf"), llama.weights->config, {.q8_0 = true}), UsageError);
  DepthPlan adapted = Pruned(llama, {1});
  adapted.stages.insert(adapted.stages.begin() + 1, AdapterStage{{1}, Adapter(llama, 4, 1)});
  expect_refused(llama, adapted, "its adapter for layer 1 reads the stream itself");
  const Model words = WithTokenizer("LlamaForCausalLM", "gpt2-json");  // with a space before the text
  EXPECT_NE(WriteRefusal("gguf", words, words.plan).find("has no name in GGUF"), std::string::npos);
  const Model converted = WithTokenizer("LlamaForCausalLM", "llama2-json");
  EXPECT_NE(WriteRefusal("gguf", converted, converted.plan).find("put tokenizer.model next to it"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt
