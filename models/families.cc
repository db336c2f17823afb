// SPDX-License-Identifier: Apache-2.0
#include "models/families.h"

#include <algorithm>
#include <cmath>

#include "models/block_tensors.h"
#include "models/config_reader.h"

namespace shiftrt {

namespace {

float InverseRoot(double x) { return 1.0f / std::sqrt(static_cast<float>(x)); }

Activation ReadActivation(const ConfigReader& config, const char* key, const char* otherwise) {
  const std::string name = config.Word(key, otherwise);
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  Fail("{}: {} \"{}\" is not supported (silu and gelu_pytorch_tanh are)", config.file(), key, name);
}

// Reads a soft cap; null means none.
float ReadCap(const ConfigReader& config, const char* key, double otherwise) {
  return config.IsNull(key) ? 0.0f : static_cast<float>(config.Number(key, 1e-6, 1e9, otherwise));
}

// For each layer, true if it attends to a window: as `layer_types` says, or else as `otherwise(layer)` says.
template <typename Otherwise>
std::vector<bool> SlidingLayers(const ConfigReader& config, const ModelConfig& model, const Otherwise& otherwise) {
  std::vector<bool> slides;
  if (!config.Has("layer_types")) {
    for (int64_t layer = 0; layer < model.layers; ++layer) slides.push_back(otherwise(layer));
    return slides;
  }
  const nlohmann::json& types = config["layer_types"];
  Check(types.is_array(), "{}: layer_types is not a list", config.file());
  for (const nlohmann::json& type : types) {
    Check(type == "full_attention" || type == "sliding_attention", "{}: layer type {} is not supported", config.file(),
          type.dump());
    slides.push_back(type == "sliding_attention");
  }
  Check(std::ssize(slides) == model.layers, "{}: layer_types has {} entries for {} layers", config.file(),
        slides.size(), model.layers);
  return slides;
}

// BlockSpec::windows for the layers that slide: `sliding_window`, or `otherwise` if config.json does not mention it.
// Null and 0 mean no window, and so does a window that no position reaches.
std::vector<int64_t> ReadWindows(const ConfigReader& config, const ModelConfig& model, int64_t otherwise,
                                 const std::vector<bool>& slides) {
  if (config.IsNull("sliding_window") || std::find(slides.begin(), slides.end(), true) == slides.end()) return {};
  const int64_t window = config.Integer("sliding_window", 1, INT64_MAX, otherwise);
  if (window == 0 || window >= model.max_positions) return {};
  std::vector<int64_t> windows;
  for (const bool slide : slides) windows.push_back(slide ? window : 0);
  return windows;
}

std::vector<bool> AllLayers(const ModelConfig& model) { return std::vector<bool>(model.layers, true); }

// A Llama block without biases, with which all families start.
BlockSpec PlainBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block;
  block.activation = ReadActivation(config, "hidden_act", "silu");
  block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
  return block;
}

BlockSpec LlamaBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.mlp_bias = config.Flag("mlp_bias", false);
  return block;
}

BlockSpec MistralBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 4096, AllLayers(model));
  return block;
}

std::vector<int64_t> QwenWindows(const ConfigReader& config, const ModelConfig& model) {
  const bool used = config.Flag("use_sliding_window", false);
  const int64_t first = config.Integer("max_window_layers", 0, INT64_MAX, 28);
  return ReadWindows(config, model, 4096,
                     SlidingLayers(config, model, [&](int64_t layer) { return used && layer >= first; }));
}

BlockSpec Qwen2Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = true;
  block.windows = QwenWindows(config, model);
  return block;
}

BlockSpec Qwen3Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.qk_norm = true;
  block.windows = QwenWindows(config, model);
  return block;
}

BlockSpec Phi3Block(const ConfigReader& config, const ModelConfig& model) {
  // In Phi-3, the names "yarn" and "su" mean longrope.
  Check(model.rope.kind == RopeKind::kDefault, "{}: of RoPE scaling, Phi-3 is supported with none", config.file());
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 0, AllLayers(model));
  return block;
}

BlockSpec Gemma2Block(const ConfigReader& config, const ModelConfig& model) {
  Check(!config.Flag("use_bidirectional_attention", false), "{}: use_bidirectional_attention is not supported",
        config.file());
  BlockSpec block;
  block.update_norms = true;
  block.norm_offset = 1;
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.activation = ReadActivation(config, "hidden_activation", "gelu_pytorch_tanh");
  block.attention_scale = InverseRoot(config.Number("query_pre_attn_scalar", 1e-6, 1e9, 256));
  block.attention_cap = ReadCap(config, "attn_logit_softcapping", 50);
  block.windows =
      ReadWindows(config, model, 4096, SlidingLayers(config, model, [](int64_t layer) { return layer % 2 == 0; }));
  block.scaled_embeddings = true;
  block.logit_cap = ReadCap(config, "final_logit_softcapping", 30);
  return block;
}

}  // namespace

const std::vector<Family>& Families() {
  using B = BlockWeights;
  static const std::vector<Family> families = {
      {"LlamaForCausalLM", "llama", LlamaBlock},
      {"MistralForCausalLM", "mistral", MistralBlock},
      {"Qwen2ForCausalLM", "qwen2", Qwen2Block},
      {"Qwen3ForCausalLM", "qwen3", Qwen3Block},
      {.architecture = "Phi3ForCausalLM",
       .name = "phi3",
       .block = Phi3Block,
       .rms_eps = 1e-5,
       .places = {{"self_attn.qkv_proj.weight", {&B::q, &B::k, &B::v}},
                  {"mlp.gate_up_proj.weight", {&B::gate, &B::up}}}},
      {.architecture = "Gemma2ForCausalLM",
       .name = "gemma2",
       .block = Gemma2Block,
       .tied_head = true,
       .head_dim = 256,
       .places = {{"post_attention_layernorm.weight", {&B::attention_update_norm}},
                  {"pre_feedforward_layernorm.weight", {&B::post_norm}},
                  {"post_feedforward_layernorm.weight", {&B::mlp_update_norm}}}},
  };
  return families;
}

const Family* FindFamily(std::string_view architecture) {
  for (const Family& family : Families())
    if (architecture == family.architecture) return &family;
  return nullptr;
}

std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config) {
  const auto& families = Families();
  const auto family =
      std::find_if(families.begin(), families.end(), [&](const Family& f) { return config.family == f.name; });
  Check(family != families.end(), "\"{}\" is no family", config.family);
  std::vector<CheckpointTensor> stored;
  for (const BlockTensor& row : BlockTensors()) {
    std::vector<int64_t> shape = row.Shape(config);
    if (shape.empty()) continue;
    const auto& places = family->places;
    const auto place = std::find_if(places.begin(), places.end(), [&](const TensorPlace& p) {
      return std::find(p.members.begin(), p.members.end(), row.member) != p.members.end();
    });
    const char* name = place == places.end() ? row.name : place->name;
    const auto before = std::find_if(stored.begin(), stored.end(),
                                     [&](const CheckpointTensor& s) { return std::string_view(s.name) == name; });
    if (before == stored.end()) {
      stored.push_back({name, std::move(shape), {&row}});
    } else {
      before->shape[0] += shape[0];
      before->parts.push_back(&row);
    }
  }
  return stored;
}

}  // namespace shiftrt
