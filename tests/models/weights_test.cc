// SPDX-License-Identifier: Apache-2.0
// Checkpoints as they should be, and every way in which they are not: each a message that names file and tensor.
#include "models/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "models/model.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "tests/models/checkpoint_files.h"

namespace shiftrt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
const std::string kQuery = "model.layers.1.self_attn.q_proj.weight";

class LoadWeightsTest : public testing::Test {
 protected:
  void SetUp() override { Make(SmallConfig()); }

  // A good checkpoint in dir() and, tensor by tensor, in tensors_.
  void Make(const std::string& config, DType dtype = DType::kFloat32) {
    WriteText(dir() / "shape.json", config);
    WriteRandomCheckpoint(dir() / "shape.json", dtype, 3, dir());
    tensors_ = ReadTensors(dir() / "model.safetensors");
  }
  std::filesystem::path dir() const { return directory_.path(); }
  StoredTensor& Tensor(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const StoredTensor& t) { return t.name == name; });
  }
  void Drop(const std::string& name) {
    std::erase_if(tensors_, [&](const StoredTensor& t) { return t.name == name; });
  }
  void Write() const { WriteText(dir() / "model.safetensors", SafetensorsBytes(tensors_)); }

  // The even tensors in shard a, the odd ones in b, and an index, changed by `change`, that says so.
  void WriteShards(const std::function<void(std::map<std::string, std::string>&)>& change = {}) const {
    std::vector<StoredTensor> shards[2];
    std::map<std::string, std::string> index;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      shards[i % 2].push_back(tensors_[i]);
      index[tensors_[i].name] = i % 2 == 0 ? "a.safetensors" : "b.safetensors";
    }
    if (change) change(index);
    WriteText(dir() / "a.safetensors", SafetensorsBytes(shards[0]));
    WriteText(dir() / "b.safetensors", SafetensorsBytes(shards[1]));
    WriteIndex(index);
    std::filesystem::remove(dir() / "model.safetensors");
  }
  void WriteIndex(const std::map<std::string, std::string>& index) const {
    std::string map;
    for (const auto& [name, shard] : index)
      map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name, shard);
    WriteText(dir() / "model.safetensors.index.json", fmt::format("{{\"weight_map\": {{{}}}}}", map));
  }

  std::string LoadRefusal(const LoadOptions& options = {}) const {
    return Refusal([&] { LoadWeights(dir(), options); });
  }
  void ExpectRefused(const std::vector<std::string>& words, const LoadOptions& options = {}) const {
    const std::string what = LoadRefusal(options);
    EXPECT_TRUE(what.starts_with(dir().string())) << what;
    for (const std::string& word : words) EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  }

  TemporaryDirectory directory_;
  std::vector<StoredTensor> tensors_;
};

std::string Hash(const TensorView& t) {
  return HashHex({static_cast<const char*>(t.data), static_cast<size_t>(t.bytes())});
}

// A hash of each tensor's bytes.
std::map<std::string, std::string> Hashes(const Weights& weights) {
  std::map<std::string, std::string> out;
  weights.ForEach([&](const std::string& name, const TensorView& t) { out[name] = Hash(t); });
  return out;
}

TEST_F(LoadWeightsTest, EveryTensorIsWhereItBelongs) {
  const auto weights = LoadWeights(dir());
  const auto found = Hashes(*weights);
  EXPECT_EQ(found.size(), tensors_.size());
  for (const StoredTensor& tensor : tensors_) EXPECT_EQ(found.at(tensor.name), HashHex(tensor.bytes)) << tensor.name;
  ASSERT_EQ(weights->blocks.size(), 3u);
  EXPECT_EQ(found.at(kQuery), Hash(weights->blocks[1].q));
  EXPECT_EQ(weights->blocks[2].k.shape, (std::vector<int64_t>{4, 8}));
  EXPECT_TRUE(weights->blocks[0].q_bias.empty());
  EXPECT_EQ(TensorShapes(weights->config).size(), tensors_.size());
}

TEST_F(LoadWeightsTest, ShardsGiveWhatOneFileGives) {
  const auto whole = LoadWeights(dir());
  WriteShards();
  const auto sharded = LoadWeights(dir());
  EXPECT_EQ(Hashes(*sharded), Hashes(*whole));
  EXPECT_EQ(sharded->Fingerprint(), whole->Fingerprint());
}

TEST_F(LoadWeightsTest, AnIndexThatLeadsElsewhereIsRefused) {
  for (const char* shard : {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\\\b"}) {
    WriteShards([&](auto& index) { index[kQuery] = shard; });
    ExpectRefused({"model.safetensors.index.json", kQuery, "not the name of a file in the directory"});
  }
}

TEST_F(LoadWeightsTest, AnIndexThatIsWrongIsRefused) {
  WriteShards([](auto& index) { index[kQuery] = "c.safetensors"; });
  ExpectRefused({"c.safetensors", "No such file"});
  WriteShards(
      [](auto& index) { index[kQuery] = index[kQuery] == "a.safetensors" ? "b.safetensors" : "a.safetensors"; });
  EXPECT_EQ(LoadRefusal(), "");  // as in transformers, the shards count
  WriteShards([](auto& index) { index.erase(kQuery); });
  ExpectRefused({"model.safetensors.index.json", kQuery, "not listed"});
  WriteShards([](auto& index) { index["model.extra.weight"] = "a.safetensors"; });
  ExpectRefused({"model.extra.weight", "as the index says"});
  const auto index_is = [&](const std::string& text) { WriteText(dir() / "model.safetensors.index.json", text); };
  for (const char* text : {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": "x", "a": "y"}})",
                           R"({"weight_map": {"a": 3}})", "{\"weight_map\": \"\xFF\"}"}) {
    index_is(text);
    ExpectRefused({"model.safetensors.index.json"});
  }
  index_is(std::string(100000, '['));
  ExpectRefused({"nested"});
}

TEST_F(LoadWeightsTest, ATensorInTwoShardsIsRefused) {
  WriteShards();
  auto shard = ReadTensors(dir() / "a.safetensors");
  const StoredTensor twice = ReadTensors(dir() / "b.safetensors").front();
  shard.push_back(twice);
  WriteText(dir() / "a.safetensors", SafetensorsBytes(shard));
  ExpectRefused({twice.name, "a.safetensors", "b.safetensors"});
}

// A model of text and images, under the names of two versions of transformers.
TEST(TextModel, IsLoadedFromAModelOfTextAndImages) {
  const TemporaryDirectory directory;
  const auto alone = directory.path() / "alone", both = directory.path() / "both";
  std::filesystem::create_directory(both);
  WriteRandomCheckpoint(GoldenModel("gemma3") / "config.json", DType::kFloat32, 1, alone);
  nlohmann::json text = nlohmann::json::parse(ReadFile(alone / "config.json"));
  text.erase("architectures");
  const nlohmann::json config = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                                 {"model_type", "gemma3"},
                                 {"text_config", text},
                                 {"vision_config", {{"hidden_size", 8}}},
                                 {"mm_tokens_per_image", 256}};
  WriteText(both / "config.json", config.dump());
  const auto original = LoadWeights(alone);
  for (const bool old : {true, false}) {
    std::vector<StoredTensor> tensors = ReadTensors(alone / "model.safetensors");
    for (StoredTensor& tensor : tensors)
      tensor.name = old ? "language_model." + tensor.name : "model.language_model." + tensor.name.substr(6);
    const std::string prefix = old ? "" : "model.";
    tensors.push_back({prefix + "vision_tower.encoder.weight", "F32", {1}, std::string(4, 'a')});
    WriteText(both / "model.safetensors", SafetensorsBytes(tensors));
    const auto loaded = LoadWeights(both);
    EXPECT_EQ(loaded->config.family, "gemma3");
    EXPECT_EQ(loaded->Fingerprint(), original->Fingerprint());
    tensors.push_back({"audio_tower.weight", "F32", {1}, std::string(4, 'a')});
    WriteText(both / "model.safetensors", SafetensorsBytes(tensors));
    EXPECT_NE(Refusal([&] { LoadWeights(both); }).find("audio_tower.weight is of neither"), std::string::npos);
  }
}

// The released Qwen 3.5 models also have tensors of images, and of blocks that predict several tokens at once.
TEST(TextModel, LeavesOutTheImagesAndTheFurtherPredictions) {
  const TemporaryDirectory directory;
  const auto alone = directory.path() / "alone", both = directory.path() / "both";
  std::filesystem::create_directory(both);
  WriteRandomCheckpoint(GoldenModel("qwen3_5") / "config.json", DType::kFloat32, 1, alone);
  nlohmann::json text = nlohmann::json::parse(ReadFile(alone / "config.json"));
  text.erase("architectures");
  const nlohmann::json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                                 {"model_type", "qwen3_5"},
                                 {"text_config", text},
                                 {"vision_config", {{"hidden_size", 8}}},
                                 {"image_token_id", 96}};
  WriteText(both / "config.json", config.dump());
  const auto original = LoadWeights(alone);
  const std::vector<StoredTensor> text_tensors = ReadTensors(alone / "model.safetensors");
  const StoredTensor further = {"mtp.layers.0.mlp.up_proj.weight", "F32", {1}, std::string(4, 'a')};
  std::vector<StoredTensor> tensors;
  for (StoredTensor tensor : text_tensors) {
    if (tensor.name.starts_with("model.")) tensor.name = "model.language_model." + tensor.name.substr(6);
    tensors.push_back(std::move(tensor));
  }
  tensors.push_back({"model.visual.blocks.0.attn.qkv.weight", "F32", {1}, std::string(4, 'a')});
  tensors.push_back(further);
  WriteText(both / "model.safetensors", SafetensorsBytes(tensors));
  EXPECT_EQ(LoadWeights(both)->Fingerprint(), original->Fingerprint());
  tensors = text_tensors;
  tensors.push_back(further);
  WriteText(alone / "model.safetensors", SafetensorsBytes(tensors));
  EXPECT_EQ(LoadWeights(alone)->Fingerprint(), original->Fingerprint());

  // A tensor of a gated delta network that is missing, or of another shape, is named.
  for (const bool missing : {true, false}) {
    tensors = text_tensors;
    const auto conv = std::ranges::find(tensors, "model.layers.1.linear_attn.conv1d.weight", &StoredTensor::name);
    ASSERT_NE(conv, tensors.end());
    if (missing) {
      tensors.erase(conv);
    } else {
      conv->shape = {80, 4};
    }
    WriteText(alone / "model.safetensors", SafetensorsBytes(tensors));
    const std::string what = Refusal([&] { LoadWeights(alone); });
    EXPECT_NE(what.find("model.layers.1.linear_attn.conv1d.weight"), std::string::npos) << what;
    EXPECT_NE(what.find(missing ? "is missing" : "has shape [80, 4], expected [80, 1, 4]"), std::string::npos) << what;
  }
}

// The constants of xIELU have no sides, or one of 1.
TEST(Numbers, AreReadInEitherForm) {
  const TemporaryDirectory directory;
  WriteRandomCheckpoint(GoldenModel("apertus") / "config.json", DType::kBFloat16, 1, directory.path());
  const auto original = LoadWeights(directory.path());
  EXPECT_EQ(original->blocks[1].xielu_eps.shape, (std::vector<int64_t>{1}));
  EXPECT_EQ(original->blocks[1].xielu_p.shape, (std::vector<int64_t>{1}));
  std::vector<StoredTensor> tensors = ReadTensors(directory.path() / "model.safetensors");
  const auto beta = std::ranges::find(tensors, "model.layers.1.mlp.act_fn.beta", &StoredTensor::name);
  ASSERT_NE(beta, tensors.end());
  EXPECT_TRUE(beta->shape.empty());
  beta->shape = {1};
  WriteText(directory.path() / "model.safetensors", SafetensorsBytes(tensors));
  EXPECT_EQ(LoadWeights(directory.path())->Fingerprint(), original->Fingerprint());
  beta->shape = {1, 1};
  WriteText(directory.path() / "model.safetensors", SafetensorsBytes(tensors));
  const std::string what = Refusal([&] { LoadWeights(directory.path()); });
  EXPECT_NE(what.find("model.layers.1.mlp.act_fn.beta has shape [1, 1], expected []"), std::string::npos) << what;
}

TEST_F(LoadWeightsTest, NoFilesAtAll) {
  std::filesystem::remove(dir() / "model.safetensors");
  ExpectRefused({"neither model.safetensors nor model.safetensors.index.json"});
  std::filesystem::create_directory(dir() / "model.safetensors");
  ExpectRefused({"not a regular file"});
  EXPECT_NE(Refusal([&] { LoadWeights(dir() / "none"); }).find("none"), std::string::npos);
}

// As transformers does: the tied head may be listed without being stored, or stored without being listed.
TEST_F(LoadWeightsTest, AnIndexAndItsShardsNeedNotAgreeOnATiedHeadAndBuffers) {
  Make(SmallConfig(/*tied=*/true));
  const auto whole = Hashes(*LoadWeights(dir()));
  WriteShards([](auto& index) {
    index["lm_head.weight"] = "a.safetensors";
    index["model.layers.0.self_attn.rotary_emb.inv_freq"] = "b.safetensors";
  });
  EXPECT_EQ(Hashes(*LoadWeights(dir())), whole);
  StoredTensor head = Tensor("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  tensors_.push_back(head);
  WriteShards([](auto& index) { index.erase("lm_head.weight"); });
  EXPECT_EQ(Hashes(*LoadWeights(dir())), whole);
}

TEST_F(LoadWeightsTest, BuffersOfAnyTypeAreLeft) {
  const auto whole = Hashes(*LoadWeights(dir()));
  tensors_.push_back({"model.layers.0.self_attn.rotary_emb.cos_cached", "F32", {2}, std::string(8, '\0')});
  tensors_.push_back({"model.position_ids", "I64", {1}, std::string(8, '\0')});
  tensors_.push_back({"model.causal_mask", "BOOL", {2}, std::string(2, '\0')});
  Write();
  EXPECT_EQ(Hashes(*LoadWeights(dir())), whole);
}

// A model that was saved from its base class has no head, and its tensors have no prefix.
TEST_F(LoadWeightsTest, TensorsWithoutThePrefixAreThoseOfTheBaseClass) {
  Make(SmallConfig(/*tied=*/true));
  const auto whole = Hashes(*LoadWeights(dir()));
  for (StoredTensor& tensor : tensors_) tensor.name = tensor.name.substr(std::string("model.").size());
  Write();
  EXPECT_EQ(Hashes(*LoadWeights(dir())), whole);
  WriteShards();
  EXPECT_EQ(Hashes(*LoadWeights(dir())), whole);
}

TEST_F(LoadWeightsTest, AMissingTensorIsNamedWithItsLikelyReason) {
  Drop("lm_head.weight");
  Write();
  ExpectRefused({"lm_head.weight is missing", "\"tie_word_embeddings\": true"});
  Drop("model.norm.weight");
  Write();
  WriteIndex({});
  ExpectRefused({"model.norm.weight is missing", "model.safetensors.index.json next to it"});
}

// Weights in another layout are named with what to do.
TEST_F(LoadWeightsTest, OtherLayoutsOfWeightsAreNamed) {
  std::filesystem::remove(dir() / "model.safetensors");
  for (const auto& [file, word] :
       std::vector<std::pair<std::string, std::string>>{{"model-00001-of-00002.safetensors", "is a shard"},
                                                        {"model.fp16.safetensors", "is a variant"},
                                                        {"consolidated.safetensors", "layout of Mistral"},
                                                        {"pytorch_model.bin", "is pickled"},
                                                        {"pytorch_model-00001-of-00002.bin", "is pickled"},
                                                        {"consolidated.00.pth", "layout of Mistral or Meta"},
                                                        {"model-q4.gguf", "give the GGUF file itself"},
                                                        {"adapter_config.json", "LoRA adapter"}}) {
    WriteText(dir() / file, "{}");
    ExpectRefused({"neither model.safetensors nor", word});
    std::filesystem::remove(dir() / file);
  }
}

TEST(OpenModel, NamesWhatADirectoryHoldsInsteadOfAModel) {
  for (const auto& [file, word] : std::vector<std::pair<std::string, std::string>>{
           {"adapter_config.json", "give its base model (org/base) as the model"},
           {"snapshots/0123/config.json", "snapshots/0123"},
           {"params.json", "layout of Meta"},
           {"model.gguf", "give the file itself"},
           {"below/config.json", "one level below"}}) {
    const TemporaryDirectory directory;
    std::filesystem::create_directories((directory.path() / file).parent_path());
    WriteText(directory.path() / file, R"({"base_model_name_or_path": "org/base"})");
    const std::string what = Refusal([&] { ResolveModel(directory.path().string()); });
    EXPECT_NE(what.find(word), std::string::npos) << what;
  }
}

TEST_F(LoadWeightsTest, MissingAndUnknownTensorsAreNamed) {
  const std::vector<StoredTensor> good = tensors_;
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
                           "model.layers.2.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight"}) {
    tensors_ = good;
    Drop(name);
    Write();
    ExpectRefused({name, "is missing"});
  }
  for (const char* name : {"model.layers.3.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias", "extra"}) {
    tensors_ = good;
    tensors_.push_back({name, "F32", {2}, std::string(8, '\0')});
    Write();
    ExpectRefused({name, "not one this configuration has"});
  }
  tensors_ = good;
  tensors_.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, std::string(8, '\0')});
  Write();
  EXPECT_EQ(LoadRefusal(), "");  // old exporters left it
  tensors_ = good;
  tensors_.push_back(Tensor(kQuery));
  Write();
  ExpectRefused({kQuery, "duplicate"});
}

TEST_F(LoadWeightsTest, ShapesAreTheConfigurations) {
  const StoredTensor good = Tensor(kQuery);
  const std::vector<std::vector<int64_t>> shapes = {{64}, {4, 16}, {8, 8, 1}, {1, 8, 8}, {16, 4}};
  for (const auto& shape : shapes) {
    Tensor(kQuery).shape = shape;
    Write();
    ExpectRefused({kQuery, fmt::format("[{}]", fmt::join(shape, ", ")), "expected [8, 8]"});
  }
  Tensor(kQuery) = good;
  Tensor("model.norm.weight").shape = {8, 1};
  Write();
  ExpectRefused({"model.norm.weight", "expected [8]"});
}

TEST_F(LoadWeightsTest, TypesAreFloats) {
  StoredTensor& query = Tensor(kQuery);
  const auto stored_as = [&](const char* dtype, size_t bytes) {
    query.dtype = dtype;
    query.bytes = std::string(64 * bytes, '\0');
    Write();
  };
  stored_as("F64", 8);
  ExpectRefused({kQuery, "float64"});
  stored_as("I32", 4);
  ExpectRefused({"model.safetensors", kQuery, "I32"});
  stored_as("I8", 1);
  ExpectRefused({kQuery, "I8"});
  stored_as("F8_E4M3", 1);
  ExpectRefused({kQuery, "F8_E4M3"});
  stored_as("C128", 16);
  ExpectRefused({kQuery, "unknown dtype"});
  stored_as("BF16", 2);  // types may differ from tensor to tensor
  EXPECT_EQ(LoadRefusal(), "");
}

TEST_F(LoadWeightsTest, ATruncatedFileIsRefusedWhereverItEnds) {
  const std::string good = SafetensorsBytes(tensors_);
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  for (size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{8 + header / 2}, size_t{8 + header},
                      size_t{9 + header}, good.size() / 2, good.size() - 1}) {
    WriteText(dir() / "model.safetensors", good.substr(0, size));
    ExpectRefused({"model.safetensors"});
  }
  WriteText(dir() / "model.safetensors", good + "x");
  ExpectRefused({"model.safetensors", "cover"});
}

TEST_F(LoadWeightsTest, NansAndInfinitiesAreFoundOnRequest) {
  const LoadOptions look{.check_finite = true};
  EXPECT_EQ(LoadRefusal(look), "");
  const StoredTensor good = Tensor(kQuery);
  for (float bad : {kNan, kInfinity, -kInfinity}) {
    Tensor(kQuery) = good;
    Tensor(kQuery).Set(37, bad);
    Tensor(kQuery).Set(51, kNan);
    Write();
    EXPECT_EQ(LoadRefusal(), "");
    ExpectRefused({kQuery, "element 37", fmt::format("{}", bad)}, look);
  }
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Make(SmallConfig(), dtype);
    Tensor("model.norm.weight").Set(7, dtype == DType::kBFloat16 ? uint16_t{0x7fc0} : uint16_t{0xfc00});
    Write();
    EXPECT_EQ(LoadRefusal(), "");
    ExpectRefused({"model.norm.weight", "element 7"}, look);
  }
}

TEST_F(LoadWeightsTest, ConversionRoundsAndGoesBack) {
  const auto whole = Hashes(*LoadWeights(dir()));
  StoredTensor& query = Tensor(kQuery);
  query.Set(0, 1.00390625f);       // halfway between two bfloat16 numbers: to the even one
  query.Set(1, 1.01171875f);       // halfway again, the even one is above
  query.Set(2, 1 + 0x1p-11f);      // halfway in float16: down to 1
  query.Set(3, 1 + 3 * 0x1p-11f);  // and up
  query.Set(4, 65519.0f);          // the last number that rounds to a finite float16
  query.Set(5, 0x1p-24f);          // the smallest float16
  query.Set(6, -0.0f);
  Write();
  const auto bf16 = LoadWeights(dir(), {.dtype = WeightType::kBFloat16});
  const auto f16 = LoadWeights(dir(), {.dtype = WeightType::kFloat16});
  ASSERT_EQ(bf16->blocks[1].q.dtype, DType::kBFloat16);
  ASSERT_EQ(f16->final_norm.dtype, DType::kFloat16);
  const auto* b = static_cast<const uint16_t*>(bf16->blocks[1].q.data);
  const auto* h = static_cast<const uint16_t*>(f16->blocks[1].q.data);
  EXPECT_EQ(b[0], 0x3f80);
  EXPECT_EQ(b[1], 0x3f82);
  EXPECT_EQ(b[6], 0x8000);
  EXPECT_EQ(h[2], 0x3c00);
  EXPECT_EQ(h[3], 0x3c02);
  EXPECT_EQ(h[4], 0x7bff);
  EXPECT_EQ(h[5], 0x0001);
  EXPECT_EQ(h[6], 0x8000);

  // The rule's values are exact in all three types, so there and back is the identity.
  for (DType stored : {DType::kBFloat16, DType::kFloat16}) {
    Make(SmallConfig(), stored);
    const auto back = LoadWeights(dir(), {.dtype = WeightType::kFloat32});
    EXPECT_EQ(back->embedding.dtype, DType::kFloat32);
    EXPECT_EQ(Hashes(*back), whole);
  }
}

TEST_F(LoadWeightsTest, WhatFloat16CannotHoldIsRefused) {
  Tensor(kQuery).Set(11, 65520.0f);
  Write();
  ExpectRefused({kQuery, "element 11", "65520", "too large for float16"}, {.dtype = WeightType::kFloat16});
  EXPECT_EQ(LoadRefusal({.dtype = WeightType::kBFloat16}), "");
  Tensor(kQuery).Set(11, -3.4e38f);
  Write();
  ExpectRefused({kQuery, "element 11", "too large for float16"}, {.dtype = WeightType::kFloat16});
  Tensor(kQuery).Set(11, std::numeric_limits<float>::max());
  Write();
  ExpectRefused({kQuery, "too large for bfloat16"}, {.dtype = WeightType::kBFloat16});
  Tensor(kQuery).Set(11, kInfinity);  // infinite already: only --check-weights minds
  Write();
  EXPECT_EQ(LoadRefusal({.dtype = WeightType::kFloat16}), "");
}

TEST_F(LoadWeightsTest, DataAtOddAddressesIsTheSame) {
  const auto expected = Hashes(*LoadWeights(dir()));
  for (size_t padding = 0; padding < 4; ++padding) {
    WriteText(dir() / "model.safetensors", SafetensorsBytes(tensors_, padding));
    const auto weights = LoadWeights(dir());
    EXPECT_EQ(Hashes(*weights), expected);
    weights->ForEach([](const std::string& name, const TensorView& t) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % SizeOf(t.dtype), 0u) << name;
    });
  }
}

TEST_F(LoadWeightsTest, HeadsAreTiedOrNot) {
  const auto untied = LoadWeights(dir());
  EXPECT_NE(untied->head.data, untied->embedding.data);
  const StoredTensor head = Tensor("lm_head.weight");
  Make(SmallConfig(/*tied=*/true));
  EXPECT_EQ(Tensor("model.embed_tokens.weight").shape, head.shape);
  const auto tied = LoadWeights(dir());
  EXPECT_EQ(tied->head.data, tied->embedding.data);
  EXPECT_EQ(Hashes(*tied).count("lm_head.weight"), 0u);
  StoredTensor same = Tensor("model.embed_tokens.weight");  // some exporters write the tied head too
  same.name = head.name;
  tensors_.push_back(same);
  Write();
  const auto both = LoadWeights(dir());
  EXPECT_EQ(both->head.data, both->embedding.data);
  tensors_.back().Set(0, 7.0f);  // as in transformers 5, the model then has a head of its own
  Write();
  const auto another = LoadWeights(dir());
  EXPECT_FALSE(another->config.tied_head);
  EXPECT_NE(another->head.data, another->embedding.data);
  EXPECT_EQ(Hashes(*another).count(head.name), 1u);
}

TEST_F(LoadWeightsTest, FingerprintsTellModelsApart) {
  const std::string original = LoadWeights(dir())->Fingerprint();
  EXPECT_EQ(original.size(), 16u);
  EXPECT_EQ(LoadWeights(dir(), {.dtype = WeightType::kBFloat16})->Fingerprint(), original);
  WriteText(dir() / "model.safetensors", SafetensorsBytes(tensors_, 3));
  EXPECT_EQ(LoadWeights(dir())->Fingerprint(), original) << "copied for alignment";

  const std::vector<StoredTensor> good = tensors_;
  for (const char* name : {"model.embed_tokens.weight", "model.layers.2.mlp.up_proj.weight", "lm_head.weight"}) {
    tensors_ = good;
    Tensor(name).Set(0, 0.75f);
    Write();
    EXPECT_NE(LoadWeights(dir())->Fingerprint(), original) << name;
  }
  tensors_ = good;
  Write();
  std::string config = SmallConfig();
  WriteText(dir() / "config.json", config.replace(config.find("10000.0"), 7, "20000.0"));
  EXPECT_NE(LoadWeights(dir())->Fingerprint(), original) << "theta";
}

// The rule is part of the goldens: a change of one byte is a change of every golden.
TEST_F(LoadWeightsTest, RandomCheckpointsAreTheSameBytesEverywhere) {
  const auto hash = [&](DType dtype, uint64_t seed) {
    const TemporaryDirectory out;
    WriteRandomCheckpoint(dir() / "shape.json", dtype, seed, out.path());
    EXPECT_EQ(ReadFile(out.path() / "config.json"), SmallConfig());
    return HashHex(ReadFile(out.path() / "model.safetensors"));
  };
  EXPECT_EQ(hash(DType::kFloat32, 3), "b7ad53f54268cbbc");
  EXPECT_EQ(hash(DType::kFloat16, 3), "c76a3c3a8d64a059");
  EXPECT_EQ(hash(DType::kBFloat16, 3), "e27d1d484ca050f8");
  EXPECT_NE(hash(DType::kFloat32, 4), hash(DType::kFloat32, 3));
}

TEST_F(LoadWeightsTest, ARandomCheckpointThatCannotBeWrittenLeavesNothing) {
  WriteText(dir() / "file", "");
  EXPECT_THROW(WriteRandomCheckpoint(dir() / "shape.json", DType::kFloat32, 1, dir() / "file" / "x"), Error);
  WriteText(dir() / "bad.json", "{}");
  EXPECT_THROW(WriteRandomCheckpoint(dir() / "bad.json", DType::kFloat32, 1, dir() / "new"), Error);
  EXPECT_FALSE(std::filesystem::exists(dir() / "new"));
  EXPECT_THROW(WriteRandomCheckpoint(dir() / "shape.json", DType::kFloat64, 1, dir() / "new"), UsageError);
}

}  // namespace
}  // namespace shiftrt
