// SPDX-License-Identifier: Apache-2.0
// Models in GGUF files: what they are read as, saved plans on top of them, and what is refused.
#include "models/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/adapted.h"
#include "models/model.h"
#include "runtime/random.h"
#include "tests/models/fixtures.h"
#include "tests/models/gguf_files.h"
#include "tests/runtime/refusal.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

class GgufModelTest : public testing::Test {
 protected:
  std::filesystem::path Path(const std::string& name = "model.gguf") const { return directory_.path() / name; }
  void ExpectRefused(const GgufBytes& file, const std::string& word) const {
    WriteText(Path(), file.Bytes());
    ExpectRefusal([&] { LoadWeights(Path()); }, Path().string(), word);
  }
  // A model whose file has other tensors than those of the weights.
  static GgufBytes Changed(const Weights& weights, const std::string& without = "") {
    GgufBytes file = GgufMetadataOf(weights.config);
    AddGgufTensors(weights, file, without);
    return file;
  }
  TemporaryDirectory directory_;
};

std::string Bytes(const TensorView& tensor) {
  return {static_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes())};
}

void ExpectSameTensors(const Weights& found, const Weights& expected) {
  std::map<std::string, std::string> tensors;
  expected.ForEach([&](const std::string& name, const TensorView& tensor) { tensors[name] = Bytes(tensor); });
  size_t count = 0;
  found.ForEach([&](const std::string& name, const TensorView& tensor) {
    EXPECT_EQ(Bytes(tensor), tensors.at(name)) << name;
    ++count;
  });
  EXPECT_EQ(count, tensors.size());
}

class GgufFamily : public GgufModelTest, public testing::WithParamInterface<const char*> {};

TEST_P(GgufFamily, IsTheModelThatItWasMadeFrom) {
  const auto original = GoldenWeights(GetParam());
  WriteText(Path(), GgufModel(*original));
  const auto weights = LoadWeights(Path());
  ExpectSameTensors(*weights, *original);
  const ModelConfig &found = weights->config, &expected = original->config;
  EXPECT_EQ(found.family, expected.family);
  EXPECT_EQ(found.heads, expected.heads);
  EXPECT_EQ(found.kv_heads, expected.kv_heads);
  EXPECT_EQ(found.head_dim, expected.head_dim);
  EXPECT_EQ(found.vocab, expected.vocab);
  EXPECT_EQ(found.max_positions, expected.max_positions);
  EXPECT_EQ(found.rms_eps, expected.rms_eps);  // 1e-5 although the file has the nearest float32
  EXPECT_EQ(found.rope.theta, expected.rope.theta);
  EXPECT_EQ(found.tied_head, expected.tied_head);
  EXPECT_EQ(found.block.qkv_bias, expected.block.qkv_bias);
  EXPECT_EQ(found.block.qk_norm, expected.block.qk_norm);
  EXPECT_EQ(MakeRopeFrequencies(found).inverse, MakeRopeFrequencies(expected).inverse);
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamily,
                         testing::Values("llama2", "llama_bias", "llama_wide_heads", "qwen1.5", "qwen2_tied", "qwen3",
                                         "qwen3_tied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// Tensors that the file holds in the form that the model needs are not copied.
TEST_F(GgufModelTest, OnlyWhatMustBeConvertedIsCopied) {
  WriteText(Path(), GgufModel(*GoldenWeights("llama2")));
  const auto weights = LoadWeights(Path());
  EXPECT_EQ(weights->stored.size(), 6u);  // queries and keys of three blocks
  EXPECT_TRUE(weights->stored.contains(weights->blocks[0].q.data));
  EXPECT_EQ(*weights->stored.at(weights->blocks[0].k.data).order,
            *InterleavedHalves(weights->config.kv_dim(), weights->config.kv_heads));
  const auto half = LoadWeights(Path(), {.dtype = WeightType::kBFloat16});
  EXPECT_EQ(half->embedding.dtype, DType::kBFloat16);
  EXPECT_EQ(half->Fingerprint(), weights->Fingerprint());
}

// Q8_0 in place of every matrix whose rows are whole blocks: the numbers are those of the format, in the model's order.
TEST_F(GgufModelTest, QuantisedTensorsAreDecoded) {
  const TemporaryDirectory shape;
  WriteText(shape.path() / "config.json", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 50, "max_position_embeddings": 64, "tie_word_embeddings": true})");
  WriteRandomCheckpoint(shape.path() / "config.json", DType::kFloat32, 1, shape.path() / "model");
  const auto original = LoadWeights(shape.path() / "model");

  Random random(5);
  Weights expected = *original;
  std::deque<std::vector<float>> decoded;
  GgufBytes file = GgufMetadataOf(original->config);
  const auto add = [&](const std::string& name, TensorView& tensor, int64_t heads) {
    const BlockTraits& type = TraitsOf(BlockType::kQ8_0);
    std::string blocks;
    for (int64_t i = 0; i < tensor.elements() / type.elements; ++i) {
      blocks += GgufBytes::Raw(Float16(0.01f * static_cast<float>(1 + random.Below(9))).bits);
      for (int64_t j = 0; j < type.elements; ++j) blocks += static_cast<char>(random.Below(256) - 128);
    }
    std::vector<float>& values = decoded.emplace_back(tensor.elements());
    const std::string stored = heads > 0 ? Interleaved(blocks, heads, original->config.head_dim,
                                                       blocks.size() / static_cast<size_t>(tensor.rows()))
                                         : blocks;
    type.decode(reinterpret_cast<const std::byte*>(blocks.data()), tensor.elements() / type.elements, values.data());
    file.AddTensor(name, {tensor.shape.begin(), tensor.shape.end()}, type.code, stored);
    tensor = {values.data(), DType::kFloat32, tensor.shape};
  };
  add("token_embd.weight", expected.embedding, 0);
  BlockWeights& block = expected.blocks[0];
  for (const BlockTensor& row : BlockTensors()) {
    TensorView& tensor = block.*row.member;
    if (tensor.empty()) continue;
    const std::string name = fmt::format("blk.0.{}", GgufName(row));
    if (row.kind == BlockTensor::Kind::kMatrix) {
      add(name, tensor, &tensor == &block.q ? 2 : &tensor == &block.k ? 1 : 0);
    } else {
      file.AddTensor(name, {tensor.shape.begin(), tensor.shape.end()}, 0, Bytes(tensor));
    }
  }
  file.AddTensor("output_norm.weight", {64}, 0, Bytes(expected.final_norm));
  WriteText(Path(), file.Bytes());

  ExpectSameTensors(*LoadWeights(Path(), {.dtype = WeightType::kFloat32}), expected);
  const auto expanded = LoadWeights(Path(), {.dtype = WeightType::kExpanded});
  EXPECT_EQ(expanded->blocks[0].gate.dtype, DType::kBFloat16);
  EXPECT_EQ(expanded->blocks[0].input_norm.dtype, DType::kFloat32);
  const auto* value = static_cast<const BFloat16*>(expanded->blocks[0].gate.data);
  EXPECT_EQ(value[7].bits, BFloat16(static_cast<const float*>(expected.blocks[0].gate.data)[7]).bits);

  // By itself a file is used as it is. Queries and keys are in another order there, and are copied block by block.
  const auto as_stored = LoadWeights(Path());
  EXPECT_EQ(as_stored->blocks[0].gate.dtype, DType::kQ8_0);
  EXPECT_EQ(as_stored->blocks[0].input_norm.dtype, DType::kFloat32);
  EXPECT_FALSE(as_stored->stored.contains(as_stored->blocks[0].gate.data));
  EXPECT_TRUE(as_stored->stored.contains(as_stored->blocks[0].q.data));
  for (const BlockTensor& row : BlockTensors()) {
    const TensorView &found = as_stored->blocks[0].*row.member, &whole = expected.blocks[0].*row.member;
    if (found.empty()) continue;
    std::vector<float> values(found.elements());
    Widen(found.dtype, found.data, found.elements(), values.data());
    EXPECT_TRUE(std::equal(values.begin(), values.end(), static_cast<const float*>(whole.data))) << row.name;
  }
  for (const auto& weights : {expanded, as_stored})
    EXPECT_EQ(weights->Fingerprint(), LoadWeights(Path(), {.dtype = WeightType::kFloat16})->Fingerprint());
}

TEST_F(GgufModelTest, NumbersThatAreNotFiniteAreFound) {
  const auto original = GoldenWeights("llama2");
  GgufBytes file = Changed(*original, "output_norm.weight");
  std::string norm = Bytes(original->final_norm);
  norm.replace(8, 4, GgufBytes::Raw(1e30f));
  file.AddTensor("output_norm.weight", {static_cast<uint64_t>(original->config.hidden)}, 0, norm);
  WriteText(Path(), file.Bytes());
  EXPECT_EQ(Refusal([&] { LoadWeights(Path(), {.check_finite = true}); }), "");
  EXPECT_NE(
      Refusal([&] { LoadWeights(Path(), {.dtype = WeightType::kFloat16}); }).find("element 2 is 1e+30, too large"),
      std::string::npos);
}

// The factors that llama.cpp's converter writes for Llama 3.1, 3.2 and 3.3, in float64 from their published settings.
std::vector<float> Llama3Factors(double theta, int64_t head_dim, double factor, double original = 8192) {
  std::vector<float> factors;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const double wavelength = 2 * M_PI * std::pow(theta, static_cast<double>(i) / static_cast<double>(head_dim));
    const double smooth = std::clamp((original / wavelength - 1) / (4 - 1), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
  }
  return factors;
}

TEST_F(GgufModelTest, FrequencyFactorsAreLlama3Scaling) {
  const auto original = GoldenWeights("llama2");
  const int64_t head_dim = original->config.head_dim;
  const auto with = [&](const std::vector<float>& factors) {
    std::string bytes;
    for (const float value : factors) bytes += GgufBytes::Raw(value);
    return Changed(*original).AddTensor("rope_freqs.weight", {factors.size()}, 0, bytes);
  };
  const std::vector<float> factors = Llama3Factors(original->config.rope.theta, head_dim, 32);
  WriteText(Path(), with(factors).Bytes());
  const ModelConfig config = LoadWeights(Path())->config;
  EXPECT_EQ(config.rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(config.rope.factor, 32);
  const std::vector<float> found = MakeRopeFrequencies(config).inverse;
  const std::vector<float> plain = MakeRopeFrequencies(original->config).inverse;
  for (size_t i = 0; i < factors.size(); ++i) EXPECT_NEAR(found[i] * factors[i] / plain[i], 1, 1e-6) << i;

  std::vector<float> others = factors;
  others[others.size() / 2] *= 1.1f;
  others.back() *= 2;
  ExpectRefused(with(others), "no settings of Llama 3's RoPE scaling have these factors");
  ExpectRefused(with({1, 2}), "rope_freqs.weight has 2 elements");
  std::vector<float> broken = factors;
  broken[1] = std::nanf("");
  ExpectRefused(with(broken), "rope_freqs.weight");
}

TEST_F(GgufModelTest, RopeScaling) {
  const auto original = GoldenWeights("qwen2_tied");
  const auto config = [&](GgufBytes file) {
    AddGgufTensors(*original, file);
    WriteText(Path(), file.Bytes());
    return LoadGgufConfig(Path());
  };
  const GgufBytes plain = GgufMetadataOf(original->config);
  const ModelConfig yarn = config(GgufBytes(plain)
                                      .Add("qwen2.rope.scaling.type", "yarn")
                                      .Add("qwen2.rope.scaling.factor", 4.0f)
                                      .Add("qwen2.rope.scaling.original_context_length", 64u));
  EXPECT_EQ(yarn.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(yarn.rope.factor, 4);
  EXPECT_EQ(yarn.rope.original_max_positions, 64);
  const ModelConfig linear =
      config(GgufBytes(plain).Add("qwen2.rope.scaling.type", "linear").Add("qwen2.rope.scaling.factor", 2.5f));
  EXPECT_EQ(linear.rope.kind, RopeKind::kLinear);
  EXPECT_EQ(linear.rope.factor, 2.5);
  EXPECT_EQ(config(GgufBytes(plain).Add("qwen2.rope.scaling.factor", 2.5f)).rope.kind, RopeKind::kLinear);
  const GgufBytes none = GgufBytes(plain).Add("qwen2.rope.scaling.type", "none");
  EXPECT_EQ(config(none).rope.kind, RopeKind::kDefault);
  EXPECT_EQ(config(GgufBytes(none).Add("qwen2.rope.scaling.factor", 4.0f)).rope.kind, RopeKind::kDefault);
  const auto refused = [&](const GgufBytes& file, const std::string& word) {
    ExpectRefusal([&] { config(file); }, Path().string(), word);
  };
  refused(GgufBytes(plain).Add("qwen2.rope.scaling.type", "longrope"), "longrope, expected none, linear or yarn");
  refused(GgufBytes(plain).Add("qwen2.rope.scaling.type", "yarn").Add("qwen2.rope.scaling.factor", 4.0f),
          "qwen2.rope.scaling.original_context_length is missing");
  refused(GgufBytes(plain).Add("qwen2.rope.scaling.yarn_log_multiplier", 0.1f), "only 0 is supported");
}

TEST_F(GgufModelTest, WhatWouldBeAnotherModelIsRefused) {
  const auto original = GoldenWeights("llama2");
  ExpectRefused(GgufBytes(), "general.architecture is missing");
  ExpectRefused(GgufBytes().Add("general.architecture", "mamba"),
                "mamba is not supported (known: llama, qwen2, qwen3, qwen3moe, qwen2moe, olmoe");
  ExpectRefused(GgufMetadataOf(original->config), "token_embd.weight is missing");
  ExpectRefused(Changed(*original).Add("llama.expert_count", 8u), "llama.expert_used_count");
  ExpectRefused(Changed(*original).Add("llama.expert_count", 2u).Add("llama.expert_used_count", 3u),
                "llama.expert_used_count is 3, expected 1 to 2");
  ExpectRefused(Changed(*original).Add("llama.expert_count", 2u).Add("llama.expert_used_count", 1u), "ffn_gate_inp");
  ExpectRefused(Changed(*original).Add("llama.attention.sliding_window", 64u), "is not known, and might change");
  ExpectRefused(Changed(*original).Add("llama.rope.dimension_count", 6u), "llama.rope.dimension_count is 6, expected");
  ExpectRefused(Changed(*original).Add("llama.vocab_size", 3u), "llama.vocab_size is 3, expected 97");
  ExpectRefused(Changed(*original, "blk.1.ffn_up.weight"), "tensor blk.1.ffn_up.weight is missing");
  ExpectRefused(Changed(*original).AddTensor("blk.3.attn_norm.weight", {4}, 0, std::string(16, '\0')),
                "blk.3.attn_norm.weight is not one this configuration has");
  GgufBytes narrow = Changed(*original, "output_norm.weight");
  narrow.AddTensor("output_norm.weight", {4}, 0, std::string(16, '\0'));
  ExpectRefused(narrow, "output_norm.weight has shape [4], expected [48]");
  GgufBytes unknown = Changed(*original, "output_norm.weight");
  unknown.AddTensor("output_norm.weight", {48}, 24, std::string(48, '\0'));
  ExpectRefused(unknown, "output_norm.weight is of type I8, which is not supported (F32, F16");
}

TEST_F(GgufModelTest, SizesOutOfRange) {
  const auto original = GoldenWeights("llama2");
  for (const char* key : {"block_count", "attention.head_count", "embedding_length", "context_length"}) {
    ModelConfig config = original->config;
    if (key == std::string("block_count")) config.layers = 0;
    if (key == std::string("attention.head_count")) config.heads = 0;
    if (key == std::string("embedding_length")) config.hidden = 0;
    if (key == std::string("context_length")) config.max_positions = 0;
    GgufBytes file = GgufMetadataOf(config);
    AddGgufTensors(*original, file);
    ExpectRefused(file, fmt::format("llama.{} is 0, expected 1 to", key));
  }
  ModelConfig config = original->config;
  config.layers = 2000000000;
  GgufBytes file = GgufMetadataOf(config);
  AddGgufTensors(*original, file);
  ExpectRefused(file, "llama.block_count is 2000000000");
}

TEST_F(GgufModelTest, SavedPlans) {
  WriteText(Path(), GgufModel(*GoldenWeights("llama2")));
  const Model model = OpenModel(Path().string());
  EXPECT_FALSE(model.tokenizer);
  const std::vector<int64_t> removed = {1};
  const DepthPlan plan = DepthPlan::Pruned(model.weights->config.layers, removed);
  for (const bool with_weights : {false, true}) {
    SCOPED_TRACE(with_weights);
    const auto saved = Path(with_weights ? "whole" : "plan");
    SaveAdapted(model, plan, Provenance(), with_weights, saved);
    const Model opened = OpenModel(saved.string());
    EXPECT_EQ(opened.removed, removed);
    ASSERT_EQ(opened.plan.blocks(), 2);
    const int64_t last = opened.plan.Blocks()[1]->layer;
    EXPECT_EQ(last, with_weights ? 1 : 2);
    EXPECT_EQ(Bytes(opened.weights->blocks[last].q), Bytes(model.weights->blocks[2].q));
    EXPECT_EQ(opened.weights->config.rms_eps, model.weights->config.rms_eps);
  }
  // Another file in its place is noticed.
  WriteText(Path(), GgufModel(*GoldenWeights("llama_bias")));
  EXPECT_NE(Refusal([&] { OpenModel(Path("plan").string()); }).find("fingerprint"), std::string::npos);
  std::filesystem::remove(Path());
  EXPECT_NE(Refusal([&] { OpenModel(Path("plan").string()); }).find("its base model"), std::string::npos);
}

// Converters write no key for the end of a turn of most models.
TEST_F(GgufModelTest, TheTextOfATokenEndsAReplyAsInLlamaCpp) {
  const auto original = GoldenWeights("llama2");
  using Ids = std::vector<int32_t>;
  int32_t type = 1;
  const auto ends = [&](const std::vector<std::string>& tokens, const std::map<std::string, uint32_t>& keys) {
    GgufBytes file = GgufMetadataOf(original->config);
    file.Add("tokenizer.ggml.tokens", tokens)
        .Add("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), type));
    for (const auto& [key, id] : keys) file.Add("tokenizer.ggml." + key + "_token_id", id);
    AddGgufTensors(*original, file);
    WriteText(Path(), file.Bytes());
    return LoadWeights(Path())->config.eos_tokens;
  };
  for (const char* text : {"<|im_end|>", "<|end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
                           "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
                           "<turn|>", "<|return|>", "<|call|>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"}) {
    EXPECT_EQ(ends({"a", text, "b"}, {{"eos", 2}}), (Ids{2, 1})) << text;
    EXPECT_EQ(ends({"a", text, "b"}, {}), Ids{1}) << text;
  }
  EXPECT_EQ(ends({"a", "im_end", "<|im_end", "b"}, {{"eos", 3}}), Ids{3});
  EXPECT_EQ(ends({"a", "b", "c", "<|im_end|>"}, {{"eos", 2}, {"eot", 1}, {"eom", 0}}), (Ids{2, 1, 0, 3}));
  EXPECT_EQ(ends({"a", "b"}, {{"eot", 1}}), Ids{1});
  EXPECT_EQ(ends({"a", "<|end|>", "<|return|>", "<|call|>"}, {{"eos", 2}}), (Ids{2, 3}));
  EXPECT_EQ(ends({"a", "<|end|>", "<|flush|>", "<|calls|>"}, {}), (Ids{2, 3}));
  EXPECT_EQ(ends({"a", "</s>"}, {}), Ids());  // HTML, as in Qwen's vocabulary
  type = 3;
  EXPECT_EQ(ends({"a", "</s>"}, {}), Ids{1});
  EXPECT_EQ(ends({"a", "</s>", "<|tool_response>"}, {}), Ids{2});
}

TEST_F(GgufModelTest, AFileThatIsNoModel) {
  WriteText(Path("notes.txt"), "GGML no more");
  ExpectRefusal([&] { OpenModel(Path("notes.txt").string()); }, Path("notes.txt").string(), "not a GGUF file");
}

}  // namespace
}  // namespace shiftrt
