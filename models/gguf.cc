// SPDX-License-Identifier: Apache-2.0
#include "models/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <set>

#include "models/block_tensors.h"
#include "models/checkpoint.h"
#include "runtime/check.h"
#include "runtime/json.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;
using B = BlockWeights;

constexpr int64_t kMaxNumber = int64_t{1} << 31;  // ParseConfig has the limit of each number

struct Architecture {
  const char* name;  // general.architecture, and the prefix of its keys
  const char* architecture;
  const char* model_type;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama"},
    {"qwen2", "Qwen2ForCausalLM", "qwen2"},
    {"qwen3", "Qwen3ForCausalLM", "qwen3"},
};

struct NamedMember {
  TensorView B::*member;
  const char* name;
};
constexpr NamedMember kBlockNames[] = {
    {&B::input_norm, "attn_norm.weight"},
    {&B::q, "attn_q.weight"},
    {&B::k, "attn_k.weight"},
    {&B::v, "attn_v.weight"},
    {&B::o, "attn_output.weight"},
    {&B::q_bias, "attn_q.bias"},
    {&B::k_bias, "attn_k.bias"},
    {&B::v_bias, "attn_v.bias"},
    {&B::o_bias, "attn_output.bias"},
    {&B::q_norm, "attn_q_norm.weight"},
    {&B::k_norm, "attn_k_norm.weight"},
    {&B::post_norm, "ffn_norm.weight"},
    {&B::gate, "ffn_gate.weight"},
    {&B::up, "ffn_up.weight"},
    {&B::down, "ffn_down.weight"},
    {&B::gate_bias, "ffn_gate.bias"},
    {&B::up_bias, "ffn_up.bias"},
    {&B::down_bias, "ffn_down.bias"},
};

// Reads the metadata of one architecture. Keys are given without its prefix, and each key that is read is recorded.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufMetadata& metadata, std::string prefix)
      : metadata_(metadata), prefix_(std::move(prefix) + ".") {}

  bool Has(const char* key) { return metadata_.Has(Full(key)); }
  int64_t Integer(const char* key) { return metadata_.Integer(Full(key), 1, kMaxNumber); }
  int64_t Integer(const char* key, int64_t otherwise) { return metadata_.Integer(Full(key), 0, kMaxNumber, otherwise); }
  double Number(const char* key, double otherwise) { return metadata_.Number(Full(key), otherwise); }
  std::string_view Text(const char* key, std::string_view otherwise) { return metadata_.Text(Full(key), otherwise); }
  // Checks a setting that is supported with one value only. The file may leave it out.
  void Only(const char* key, double value) {
    const double found = Number(key, value);
    Check(found == value, "{}: {} is {}; only {} is supported", metadata_.name(), Full(key), found, value);
  }
  void OnlyInteger(const char* key, int64_t value, const char* why) {
    const int64_t found = Integer(key, value);
    Check(found == value, "{}: {} is {}, expected {}: {}", metadata_.name(), Full(key), found, value, why);
  }
  void Ignore(const char* key) { Full(key); }
  void RefuseOthers() const {
    for (const auto& [key, value] : metadata_.values())
      Check(!key.starts_with(prefix_) || read_.contains(key),
            "{}: {} is not known, and might change what the model computes", metadata_.name(), key);
  }
  std::string Full(const char* key) { return *read_.insert(prefix_ + key).first; }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
};

const Architecture& FindArchitecture(const GgufMetadata& metadata) {
  const std::string_view name = metadata.Text("general.architecture");
  std::string known;
  for (const Architecture& row : kArchitectures) {
    if (name == row.name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  Fail("{}: general.architecture {} is not supported (known: {})", metadata.name(), Printable(name), known);
}

std::vector<float> ReadRopeFactors(const GgufFile& file) {
  const auto found = file.tensors().find(kGgufRopeFactors);
  if (found == file.tensors().end()) return {};
  const GgufTensor& tensor = found->second;
  Check(tensor.type->code == static_cast<uint32_t>(BlockType::kF32), "{}: tensor {} is of type {}, expected F32",
        file.path().string(), kGgufRopeFactors, tensor.type->name);
  std::vector<float> factors(static_cast<size_t>(tensor.bytes) / sizeof(float));
  if (!factors.empty()) std::memcpy(factors.data(), tensor.data, static_cast<size_t>(tensor.bytes));
  return factors;
}

bool AreFactorsOf(const ModelConfig& model, const std::vector<float>& plain, const std::vector<float>& factors) {
  const std::vector<float> scaled = MakeRopeFrequencies(model).inverse;
  for (size_t i = 0; i < factors.size(); ++i)
    if (!(std::abs(factors[i] * scaled[i] - plain[i]) <= 1e-5f * plain[i])) return false;
  return true;
}

// Completes Llama 3's settings, given the largest factor, from the frequencies between those that are kept and those
// that are slowed. The share s of the unscaled frequency is linear in the inverse wavelength: s (high - low) = original
// / wavelength - low. Only ratios of the three count, so low is set to 1. False if there is no such frequency.
bool FitLlama3(const std::vector<float>& plain, const std::vector<float>& factors, RopeSpec& rope) {
  double xx = 0, xs = 0, ss = 0, x1 = 0, s1 = 0;
  int between = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double kept = (1 / static_cast<double>(factors[i]) - 1 / rope.factor) / (1 - 1 / rope.factor);
    if (kept < 1e-4 || kept > 1 - 1e-4) continue;
    const double x = static_cast<double>(plain[i]) / (2 * std::numbers::pi);  // x original - s (high - 1) = 1
    xx += x * x;
    xs += x * kept;
    ss += kept * kept;
    x1 += x;
    s1 += kept;
    ++between;
  }
  if (between == 0) return false;
  double original = (x1 + 3 * xs) / xx, high = 4;  // the values of all models whose file does not say
  if (between > 1) {
    const double determinant = xx * ss - xs * xs;
    original = (x1 * ss - s1 * xs) / determinant;
    high = 1 + (x1 * xs - s1 * xx) / determinant;
  }
  if (!(original >= 1 && original < 1e9 && high > 1 && high < 1e6)) return false;
  rope.original_max_positions = std::llround(original);
  const double quarter = std::round(high * 4) / 4;  // settings are round numbers
  rope.high_freq_factor = std::abs(high - quarter) < 1e-2 ? quarter : high;
  return true;
}

Json Llama3Scaling(const std::string& file, const std::vector<float>& factors, double theta, int64_t head_dim) {
  Check(std::ssize(factors) == head_dim / 2, "{}: tensor {} has {} elements, expected {}", file, kGgufRopeFactors,
        factors.size(), head_dim / 2);
  const std::optional<RopeSpec> rope = FindLlama3Scaling(factors, theta, head_dim);
  Check(rope.has_value(),
        "{}: tensor {}: no settings of Llama 3's RoPE scaling have these factors, and no other kind is "
        "supported",
        file, kGgufRopeFactors);
  return {{"rope_type", "llama3"},
          {"factor", rope->factor},
          {"low_freq_factor", rope->low_freq_factor},
          {"high_freq_factor", rope->high_freq_factor},
          {"original_max_position_embeddings", rope->original_max_positions}};
}

// `rope_scaling` of config.json; null for none.
Json RopeScaling(const GgufFile& file, ArchitectureKeys& keys, double theta, int64_t head_dim) {
  const std::string name = file.path().string();
  const std::string_view type = keys.Text("rope.scaling.type", "none");
  const double factor = keys.Number("rope.scaling.factor", keys.Number("rope.scale_linear", 1));
  const int64_t original = keys.Integer("rope.scaling.original_context_length", 0);
  keys.Ignore("rope.scaling.finetuned");
  keys.Only("rope.scaling.attn_factor", 1);
  keys.Only("rope.scaling.yarn_ext_factor", 1);
  keys.Only("rope.scaling.yarn_attn_factor", 1);
  keys.Only("rope.scaling.yarn_log_multiplier", 0);
  const double fast = keys.Number("rope.scaling.yarn_beta_fast", 32);
  const double slow = keys.Number("rope.scaling.yarn_beta_slow", 1);
  const std::vector<float> factors = ReadRopeFactors(file);
  if (!factors.empty()) {
    Check(type == "none", "{}: tensor {} beside rope.scaling.type {} is not supported", name, kGgufRopeFactors,
          Printable(type));
    return Llama3Scaling(name, factors, theta, head_dim);
  }
  if (type == "yarn") {
    Check(original > 0, "{}: {} is missing", name, keys.Full("rope.scaling.original_context_length"));
    return {{"rope_type", "yarn"},
            {"factor", factor},
            {"original_max_position_embeddings", original},
            {"beta_fast", fast},
            {"beta_slow", slow}};
  }
  Check(type == "linear" || type == "none", "{}: {} is {}, expected none, linear or yarn", name,
        keys.Full("rope.scaling.type"), Printable(type));
  // Old files have a factor but no type.
  return factor == 1 ? Json() : Json{{"rope_type", "linear"}, {"factor", factor}};
}

// The name of the type that a tensor gets in memory unless the caller asks for another.
const char* TypeInMemory(const BlockTraits& stored) {
  return Name(PlainType(static_cast<BlockType>(stored.code)).value_or(DType::kBFloat16));
}

void AddTokens(const GgufMetadata& metadata, Json& config) {
  const auto id = [&](const char* key) { return metadata.Integer(key, 0, kMaxNumber, -1); };
  if (const int64_t bos = id("tokenizer.ggml.bos_token_id"); bos >= 0) config["bos_token_id"] = bos;
  // Chat models have a token that ends a turn, besides the token that ends the text.
  const int64_t eos = id("tokenizer.ggml.eos_token_id"), eot = id("tokenizer.ggml.eot_token_id");
  if (eos >= 0) config["eos_token_id"] = eos;
  if (eos >= 0 && eot >= 0 && eot != eos) config["eos_token_id"] = Json::array({eos, eot});
}

// Opens a GGUF file under the tensor names of the family's Hugging Face checkpoints.
class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(const std::filesystem::path& path, const ModelConfig& config)
      : file_(std::make_shared<GgufFile>(path)), config_(config) {}

  FileTensor Take(const std::string& name, const std::vector<int64_t>& shape) override {
    const auto [stored, row] = Translate(name);
    const std::string where = file_->path().string();
    const auto found = file_->tensors().find(stored);
    Check(found != file_->tensors().end(), "{}: tensor {} is missing", where, stored);
    const GgufTensor& tensor = found->second;
    Check(tensor.shape == shape, "{}: tensor {} has shape [{}], expected [{}]", where, stored,
          fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    Check(tensor.type->decode != nullptr, "{}: tensor {} is of type {}, which is not supported ({} are)", where, stored,
          tensor.type->name, DecodableTypes());
    used_.insert(stored);
    FileTensor taken{tensor.data, static_cast<BlockType>(tensor.type->code), tensor.shape};
    if (row != nullptr && IsInterleavedInGguf(config_, *row)) {
      taken.interleaved_heads = row->output == Axis::kQueries ? config_.heads : config_.kv_heads;
      Check(shape.size() == 2 || PlainType(taken.type), "{}: tensor {} is a vector of type {}, expected F32", where,
            stored, tensor.type->name);
    }
    return taken;
  }

  void RefuseLeftOver(bool /*tied_head*/, bool /*adapters_beside*/) const override {
    for (const auto& [name, tensor] : file_->tensors())
      Check(used_.contains(name) || name == kGgufRopeFactors, "{}: tensor {} is not one this configuration has",
            file_->path().string(), name);
  }

  std::vector<std::shared_ptr<const void>> Storage() const override { return {file_}; }

 private:
  struct Translation {
    std::string name;
    const BlockTensor* row;  // null for a tensor outside the blocks
  };
  static Translation Translate(const std::string& name) {
    if (name == "model.embed_tokens.weight") return {kGgufEmbedding, nullptr};
    if (name == "model.norm.weight") return {kGgufFinalNorm, nullptr};
    if (name == "lm_head.weight") return {kGgufHead, nullptr};
    constexpr std::string_view kLayers = "model.layers.";
    const size_t begin = kLayers.size(), dot = name.find('.', begin);
    const std::string_view rest = std::string_view(name).substr(dot + 1);
    for (const BlockTensor& row : BlockTensors())
      if (rest == row.name && GgufName(row) != nullptr)
        return {fmt::format("blk.{}.{}", name.substr(begin, dot - begin), GgufName(row)), &row};
    Fail("GGUF has no name for tensor {}", name);
  }

  std::shared_ptr<GgufFile> file_;
  const ModelConfig& config_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace

Json GgufConfig(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  const std::string name = file.path().string();
  const Architecture& architecture = FindArchitecture(metadata);
  ArchitectureKeys keys(metadata, architecture.name);
  const auto embedding = file.tensors().find(kGgufEmbedding);
  Check(embedding != file.tensors().end(), "{}: tensor {} is missing", name, kGgufEmbedding);
  const bool biases = file.tensors().contains("blk.0.attn_q.bias");

  const int64_t hidden = keys.Integer("embedding_length"), heads = keys.Integer("attention.head_count");
  const int64_t head_dim = keys.Integer("attention.key_length", hidden / heads);
  const std::string why = fmt::format("heads have {} dimensions", head_dim);
  keys.OnlyInteger("attention.value_length", head_dim, why.c_str());
  keys.OnlyInteger("rope.dimension_count", head_dim, why.c_str());
  keys.OnlyInteger("vocab_size", embedding->second.shape.front(), "the rows of token_embd.weight");
  keys.OnlyInteger("expert_count", 0, "mixtures of experts are not supported");
  keys.OnlyInteger("expert_used_count", 0, "mixtures of experts are not supported");
  keys.Ignore("tensor_data_layout");
  const double theta = keys.Number("rope.freq_base", 10000);
  Json config = {{"architectures", Json::array({architecture.architecture})},
                 {"model_type", architecture.model_type},
                 {"hidden_act", "silu"},
                 {"hidden_size", hidden},
                 {"intermediate_size", keys.Integer("feed_forward_length")},
                 {"num_hidden_layers", keys.Integer("block_count")},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", keys.Integer("attention.head_count_kv", heads)},
                 {"head_dim", head_dim},
                 {"vocab_size", embedding->second.shape.front()},
                 {"max_position_embeddings", keys.Integer("context_length")},
                 {"rms_norm_eps", keys.Number("attention.layer_norm_rms_epsilon", 1e-5)},
                 {"rope_theta", theta},
                 {"attention_bias", biases},
                 {"mlp_bias", file.tensors().contains("blk.0.ffn_gate.bias")},
                 {"tie_word_embeddings", !file.tensors().contains(kGgufHead)},
                 {"torch_dtype", TypeInMemory(*embedding->second.type)}};
  Check(head_dim > 0 && head_dim <= kMaxNumber / heads, "{}: {} is {}", name, keys.Full("attention.key_length"),
        head_dim);
  if (Json scaling = RopeScaling(file, keys, theta, head_dim); !scaling.is_null())
    config["rope_scaling"] = std::move(scaling);
  AddTokens(metadata, config);
  keys.RefuseOthers();
  return config;
}

ModelConfig LoadGgufConfig(const std::filesystem::path& file) {
  return ConfigFromJson(GgufConfig(GgufFile(file)), file.string());
}

std::optional<RopeSpec> FindLlama3Scaling(const std::vector<float>& factors, double theta, int64_t head_dim) {
  ModelConfig model;
  model.head_dim = head_dim;
  model.rope.theta = theta;
  const std::vector<float> plain = MakeRopeFrequencies(model).inverse;
  RopeSpec& rope = model.rope;
  rope.kind = RopeKind::kLlama3;
  rope.factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  rope.original_max_positions = 8192;  // as in all released models, with low 1 and high 4
  if (AreFactorsOf(model, plain, factors)) return rope;
  if (FitLlama3(plain, factors, rope) && AreFactorsOf(model, plain, factors)) return rope;
  return std::nullopt;
}

const char* GgufArchitecture(const ModelConfig& config) {
  const BlockSpec& block = config.block;
  if (block.AnyWindow()) return nullptr;
  if (config.family == "llama" || config.family == "mistral") return "llama";
  if (config.family == "qwen2") return "qwen2";
  return config.family == "qwen3" && !block.qkv_bias ? "qwen3" : nullptr;
}

const char* GgufName(const BlockTensor& tensor) {
  for (const NamedMember& row : kBlockNames)
    if (row.member == tensor.member) return row.name;
  return nullptr;
}

bool IsInterleavedInGguf(const ModelConfig& config, const BlockTensor& tensor) {
  const auto of = [&](TensorView B::*member) { return tensor.member == member; };
  const char* const architecture = GgufArchitecture(config);
  return architecture != nullptr && std::string_view(architecture) == "llama" &&
         (of(&B::q) || of(&B::k) || of(&B::q_bias) || of(&B::k_bias));
}

std::unique_ptr<Checkpoint> OpenGguf(const std::filesystem::path& file, const ModelConfig& config) {
  return std::make_unique<GgufCheckpoint>(file, config);
}

}  // namespace shiftrt
