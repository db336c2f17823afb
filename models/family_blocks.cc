// SPDX-License-Identifier: Apache-2.0
#include "models/family_blocks.h"

#include <algorithm>
#include <cmath>

#include "models/config_reader.h"
#include "models/family_block_parts.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

Activation ReadActivation(const ConfigReader& config, const char* key, const char* fallback) {
  const std::string name = config.Word(key, fallback);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  Fail("{}: {} \"{}\" is not supported (silu and gelu_pytorch_tanh are)", config.file(), key, name);
}

// The activation of an MLP without gate.
Activation ReadUngatedActivation(const ConfigReader& config, const char* fallback) {
  const std::string name = config.Word("hidden_act", fallback);
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu2") return Activation::kRelu2;
  Fail("{}: hidden_act \"{}\" is not supported without gate (gelu, gelu_pytorch_tanh, gelu_new and relu2 are)",
       config.file(), name);
}

// Reads a soft cap; 0 for none.
float ReadCap(const ConfigReader& config, const char* key) {
  return config.Has(key) ? static_cast<float>(config.Number(key, 1e-6, 1e9)) : 0.0f;
}

// For each layer, true if it attends to a window: as `layer_types` says, or else as `fallback(layer)` says.
template <typename Default>
std::vector<bool> SlidingLayers(const ConfigReader& config, const ModelConfig& model, const Default& fallback) {
  std::vector<bool> slides;
  if (!config.Has("layer_types")) {
    for (int64_t layer = 0; layer < model.layers; ++layer) slides.push_back(fallback(layer));
    return slides;
  }
  const nlohmann::json& types = config["layer_types"];
  Check(types.is_array(), "{}: layer_types is not a list", config.file());
  for (const nlohmann::json& type : types) {
    Check(type == "full_attention" || type == "sliding_attention", "{}: layer type {} is not supported", config.file(),
          Shown(type));
    slides.push_back(type == "sliding_attention");
  }
  Check(std::ssize(slides) == model.layers, "{}: layer_types has {} entries for {} layers", config.file(),
        slides.size(), model.layers);
  return slides;
}

// BlockSpec::windows for the layers that slide: `sliding_window`, or `fallback` if config.json does not mention it.
// Null and 0 mean no window, and so does a window that no position reaches.
std::vector<int64_t> ReadWindows(const ConfigReader& config, const ModelConfig& model, int64_t fallback,
                                 const std::vector<bool>& slides) {
  if (config.IsNull("sliding_window") || std::find(slides.begin(), slides.end(), true) == slides.end()) return {};
  const int64_t window = config.Integer("sliding_window", 1, INT64_MAX, fallback);
  if (window == 0 || window >= model.max_positions) return {};
  std::vector<int64_t> windows;
  windows.reserve(slides.size());
  for (const bool slide : slides) windows.push_back(slide ? window : 0);
  return windows;
}

// BlockSpec::windows of families in which more than the window depends on whether a layer slides: a window that no
// position reaches stays, so that the layers can be told apart.
std::vector<int64_t> WindowsOf(const ConfigReader& config, const ModelConfig& model, const std::vector<bool>& slides) {
  const int64_t window = std::min(config.Integer("sliding_window", 1, INT64_MAX), model.max_positions);
  std::vector<int64_t> windows;
  windows.reserve(slides.size());
  for (const bool slide : slides) windows.push_back(slide ? window : 0);
  return windows;
}

std::vector<RopeChoice> RopesOf(const std::vector<bool>& layers, RopeChoice these, RopeChoice others) {
  std::vector<RopeChoice> ropes;
  ropes.reserve(layers.size());
  for (const bool is : layers) ropes.push_back(is ? these : others);
  return ropes;
}

std::vector<bool> AllLayers(const ModelConfig& model) { return std::vector<bool>(model.layers, true); }

// The windows of Qwen 2 and later: without layer_types, slides(layer, max_window_layers) says which layers have one.
template <typename Slides>
std::vector<int64_t> QwenWindows(const ConfigReader& config, const ModelConfig& model, const Slides& slides) {
  const bool used = config.Flag("use_sliding_window", false);
  const int64_t limit = config.Integer("max_window_layers", 0, INT64_MAX, 28);
  return ReadWindows(config, model, 4096,
                     SlidingLayers(config, model, [&](int64_t layer) { return used && slides(layer, limit); }));
}
std::vector<int64_t> QwenWindows(const ConfigReader& config, const ModelConfig& model) {
  return QwenWindows(config, model, [](int64_t layer, int64_t first) { return layer >= first; });
}

// The part that all Gemma models have in common.
BlockSpec AnyGemmaBlock(const ConfigReader& config) {
  Check(!config.Flag("use_bidirectional_attention", false), "{}: use_bidirectional_attention is not supported",
        config.file());
  BlockSpec block;
  block.norm_offset = 1;
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.scaled_embeddings = true;
  return block;
}

// The part that Gemma 2, 3 and VaultGemma have in common, and the norms of updates, which VaultGemma lacks.
BlockSpec GemmaBlock(const ConfigReader& config, const ModelConfig&) {
  BlockSpec block = AnyGemmaBlock(config);
  block.update_norms = true;
  block.activation = ReadActivation(config, "hidden_activation", "gelu_pytorch_tanh");
  block.attention_scale = InverseRoot(config.Number("query_pre_attn_scalar", 1e-6, 1e9));
  block.attention_cap = ReadCap(config, "attn_logit_softcapping");
  block.logit_cap = ReadCap(config, "final_logit_softcapping");
  return block;
}

// Norms of queries and keys, and after each half, but none before.
BlockSpec NormsAfter(BlockSpec block) {
  block.input_norms = false;
  block.update_norms = block.qk_norm = true;
  return block;
}

float Multiplier(const ConfigReader& config, const char* key) {
  return static_cast<float>(config.Number(key, 1e-9, 1e9, 1));
}

}  // namespace

float InverseRoot(double x) { return 1.0f / std::sqrt(static_cast<float>(x)); }

int64_t Pattern(const ConfigReader& config, const char* key, int64_t fallback) {
  return config.Integer(key, 1, 1 << 20, fallback);
}

BlockSpec PlainBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block;
  block.activation = ReadActivation(config, "hidden_act", "silu");
  block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
  return block;
}

void ReadMixture(const ConfigReader& config, const ModelConfig& model, const char* experts_key, const char* units_key,
                 BlockSpec& block) {
  MixtureSpec& mixture = block.mixture;
  constexpr int64_t kMostExperts = 1 << 16, kMostUnits = 1 << 22;
  mixture.experts = config.Integer(experts_key, 0, kMostExperts);
  if (mixture.experts == 0) return;
  mixture.active = config.Integer("num_experts_per_tok", 1, mixture.experts);
  mixture.units = config.Integer(units_key, 1, kMostUnits);
  const int64_t step = config.Integer("decoder_sparse_step", 1, INT64_MAX, 1);
  for (int64_t layer = 0; layer < model.layers; ++layer) mixture.layers.push_back((layer + 1) % step == 0);
  if (config.Has("mlp_only_layers")) {
    const nlohmann::json& list = config["mlp_only_layers"];
    Check(list.is_array(), "{}: mlp_only_layers is {}, expected a list", config.file(), Shown(list));
    for (const nlohmann::json& entry : list) {
      // transformers ignores a number that no layer has.
      Check(entry.is_number_integer(), "{}: mlp_only_layers has {}, expected the number of a layer", config.file(),
            Shown(entry));
      if (entry >= 0 && entry < model.layers) mixture.layers[entry.get<size_t>()] = false;
    }
  }
  const auto mixed = std::count(mixture.layers.begin(), mixture.layers.end(), true);
  block.mixed = mixed > 0;
  block.dense = mixed < model.layers;
}

void ReadSharedExpert(const ConfigReader& config, BlockSpec& block) {
  constexpr int64_t kMostUnits = 1 << 22;
  block.mixture.shared_units = config.Integer("shared_expert_intermediate_size", 1, kMostUnits);
  block.shared_expert = block.mixed;
}

BlockSpec LlamaBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.mlp_bias = config.Flag("mlp_bias", false);
  return block;
}

BlockSpec ArceeBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block;
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.mlp_bias = config.Flag("mlp_bias", false);
  block.gated = false;
  block.activation = ReadUngatedActivation(config, "relu2");
  block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
  return block;
}

BlockSpec Jais2Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = ArceeBlock(config, model);
  block.layer_norm = block.norm_bias = true;
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", true);
  block.mlp_bias = config.Flag("mlp_bias", true);
  return block;
}

BlockSpec CwmBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.mlp_bias = config.Flag("mlp_bias", false);
  block.windows =
      ReadWindows(config, model, 8192, SlidingLayers(config, model, [](int64_t layer) { return layer % 4 != 0; }));
  return block;
}

BlockSpec MinistralBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 4096, SlidingLayers(config, model, [](int64_t) { return true; }));
  return block;
}

BlockSpec Ministral3Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 0, AllLayers(model));
  return block;
}

BlockSpec MistralBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 4096, AllLayers(model));
  return block;
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

BlockSpec Qwen3MoeBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.qk_norm = true;
  if (config.Flag("use_sliding_window", false)) block.windows = ReadWindows(config, model, 4096, AllLayers(model));
  config.Has("sliding_window");
  // transformers 5 writes the number of experts under the second name.
  const bool new_name = !config.Has("num_experts") && config.Has("num_local_experts");
  ReadMixture(config, model, new_name ? "num_local_experts" : "num_experts", "moe_intermediate_size", block);
  block.mixture.normalised = config.Flag("norm_topk_prob", false);
  return block;
}

BlockSpec Qwen2MoeBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = config.Flag("qkv_bias", true);
  block.windows = QwenWindows(config, model, [](int64_t layer, int64_t end) { return layer % 2 == 0 && layer < end; });
  ReadMixture(config, model, "num_experts", "moe_intermediate_size", block);
  ReadSharedExpert(config, block);
  block.mixture.normalised = config.Flag("norm_topk_prob", false);
  return block;
}

BlockSpec MixtralBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 0, AllLayers(model));
  ReadMixture(config, model, "num_local_experts", "intermediate_size", block);
  block.mixture.normalised = true;
  return block;
}

BlockSpec OlmoeBlock(const ConfigReader& config, const ModelConfig& model) {
  Check(!config.Has("clip_qkv"), "{}: clip_qkv is not supported", config.file());
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.qk_norm = block.qk_norm_whole = true;
  ReadMixture(config, model, "num_experts", "intermediate_size", block);
  block.mixture.normalised = config.Flag("norm_topk_prob", false);
  return block;
}

BlockSpec GptOssBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  Check(block.activation == Activation::kSilu, "{}: hidden_act is not silu, which gpt-oss has", config.file());
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", true);
  block.attention_sinks = true;
  block.windows = ReadWindows(config, model, 128, SlidingLayers(config, model, FullEvery(2)));
  ReadMixture(config, model, "num_local_experts", "intermediate_size", block);
  Check(block.mixed, "{}: num_local_experts is 0, which is not supported", config.file());
  block.mixture.normalised = block.expert_bias = true;
  block.clamped = {static_cast<float>(config.Number("swiglu_alpha", 1e-3, 1e3, 1.702)),
                   static_cast<float>(config.Number("swiglu_limit", 1e-3, 1e6, 7))};
  return block;
}

BlockSpec HunYuanBlock(const ConfigReader& config, const ModelConfig& model) {
  // transformers reads none of these.
  Check(config.Flag("use_qk_norm", true), "{}: use_qk_norm is false, which is not supported", config.file());
  for (const char* key : {"use_cla", "position_embedding_xdrope"})
    Check(!config.Flag(key, false), "{}: {} is not supported", config.file(), key);
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.qk_norm = block.qk_norm_after_rotation = true;
  return block;
}

BlockSpec ApertusBlock(const ConfigReader& config, const ModelConfig& model) {
  const std::string activation = config.Word("hidden_act", "xielu");
  Check(activation == "xielu", "{}: hidden_act \"{}\" is not supported (xielu is)", config.file(),
        Printable(activation));
  Check(config.Flag("qk_norm", true) && !config.Flag("post_norm", false),
        "{}: qk_norm false and post_norm true are not supported", config.file());
  BlockSpec block;
  block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.qk_norm = block.xielu = true;
  block.gated = false;
  return block;
}

BlockSpec Phi3Block(const ConfigReader& config, const ModelConfig& model) {
  Check(model.rope.kind == RopeKind::kDefault || model.rope.kind == RopeKind::kLongRope,
        "{}: of RoPE scaling, Phi-3 is supported with longrope and with none", config.file());
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 0, AllLayers(model));
  return block;
}

BlockSpec Gemma1Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = AnyGemmaBlock(config);
  const std::string activation = config.Word("hidden_act", "gelu_pytorch_tanh");
  block.activation = activation == "gelu" ? Activation::kGeluTanh : ReadActivation(config, "hidden_act", "");
  block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
  return block;
}

BlockSpec Gemma2Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = GemmaBlock(config, model);
  block.windows =
      ReadWindows(config, model, 4096, SlidingLayers(config, model, [](int64_t layer) { return layer % 2 == 0; }));
  return block;
}

BlockSpec VaultGemmaBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = Gemma2Block(config, model);
  block.update_norms = false;
  return block;
}

BlockSpec Gemma3Block(const ConfigReader& config, const ModelConfig& model) {
  // transformers reads this setting and then does not apply it.
  Check(!config.Has("attn_logit_softcapping"), "{}: attn_logit_softcapping is not supported for Gemma 3",
        config.file());
  BlockSpec block = GemmaBlock(config, model);
  block.qk_norm = true;
  const std::vector<bool> slides =
      SlidingLayers(config, model, FullEvery(Pattern(config, "sliding_window_pattern", 6)));
  block.windows = WindowsOf(config, model, slides);
  block.ropes = RopesOf(slides, RopeChoice::kSecond, RopeChoice::kFirst);
  return block;
}

BlockSpec SmolLm3Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = LlamaBlock(config, model);
  const int64_t interval = Pattern(config, "no_rope_layer_interval", 4);
  std::vector<bool> rotates;
  if (config.Has("no_rope_layers")) {  // 1 for the layers that have a rotary embedding
    const nlohmann::json& list = config["no_rope_layers"];
    Check(list.is_array() && std::ssize(list) == model.layers, "{}: no_rope_layers is not a list of {} numbers",
          config.file(), model.layers);
    for (const nlohmann::json& value : list) {
      Check(value == 0 || value == 1, "{}: no_rope_layers has {}, expected 0 or 1", config.file(), Shown(value));
      rotates.push_back(value == 1);
    }
  } else {
    for (int64_t layer = 0; layer < model.layers; ++layer) rotates.push_back((layer + 1) % interval != 0);
  }
  block.ropes = RopesOf(rotates, RopeChoice::kFirst, RopeChoice::kNone);
  const bool used = config.Flag("use_sliding_window", false);
  std::vector<bool> slides = SlidingLayers(config, model, [&](int64_t layer) { return !rotates[layer]; });
  const bool contradicts = !used && config.Has("layer_types") && std::count(slides.begin(), slides.end(), true) > 0;
  Check(!contradicts, "{}: layer_types has sliding_attention, but use_sliding_window is not true", config.file());
  if (!used) slides.assign(slides.size(), false);
  block.windows = ReadWindows(config, model, 0, slides);
  return block;
}

BlockSpec Olmo2Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = NormsAfter(PlainBlock(config, model));
  block.qk_norm_whole = true;
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  return block;
}

BlockSpec Olmo3Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = Olmo2Block(config, model);
  const std::vector<bool> slides = SlidingLayers(config, model, FullEvery(4));
  block.windows = WindowsOf(config, model, slides);
  block.ropes = RopesOf(slides, RopeChoice::kSecond, RopeChoice::kFirst);
  return block;
}

BlockSpec Exaone4Block(const ConfigReader& config, const ModelConfig& model) {
  Check(config.Flag("reorder_qk_norm", true), "{}: reorder_qk_norm is false, which is not supported", config.file());
  BlockSpec block = NormsAfter(PlainBlock(config, model));
  const bool hybrid = config.Has("sliding_window"), named = config.Has("layer_types");
  // Released configs have a word here besides layer_types.
  const bool counted = config.Has("sliding_window_pattern") && hybrid && !named;
  const auto slides_by_number = FullEvery(counted ? Pattern(config, "sliding_window_pattern", 4) : 4);
  const std::vector<bool> slides =
      SlidingLayers(config, model, [&](int64_t layer) { return hybrid && slides_by_number(layer); });
  if (!hybrid) return block;
  block.windows = WindowsOf(config, model, slides);
  block.ropes = RopesOf(slides, RopeChoice::kFirst, RopeChoice::kNone);
  return block;
}

BlockSpec GraniteBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = LlamaBlock(config, model);
  block.attention_scale = Multiplier(config, "attention_multiplier");
  block.residual_multiplier = Multiplier(config, "residual_multiplier");
  block.embedding_multiplier = Multiplier(config, "embedding_multiplier");
  block.logit_scale = 1 / Multiplier(config, "logits_scaling");
  return block;
}

BlockSpec HyperClovaXBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = GraniteBlock(config, model);
  block.update_norms = config.Flag("use_post_norm", true);
  if (!config.Has("attention_multiplier")) block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
  block.logit_scale = Multiplier(config, "logits_scaling");
  return block;
}

BlockSpec Granite4Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = GraniteBlock(config, model);
  block.mlp_bias = false;
  const int64_t experts = config.Integer("num_local_experts", 0, 1 << 20, 8);
  Check(experts == 0, "{}: num_local_experts is {}: mixtures of experts are not supported", config.file(), experts);
  Check(config.Has("layer_types"), "{}: layer_types is missing", config.file());
  for (const nlohmann::json& type : config["layer_types"])
    Check(type == "attention" || type == "full_attention", "{}: layers of type {} are not supported", config.file(),
          Shown(type));
  const std::string positions = config.Word("position_embedding_type", "nope");
  Check(positions == "rope" || positions == "nope", "{}: position_embedding_type \"{}\" is not supported",
        config.file(), Printable(positions));
  if (positions == "nope") block.ropes.assign(model.layers, RopeChoice::kNone);
  return block;
}

BlockSpec GlmBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = config.Flag("attention_bias", true);
  return block;
}

BlockSpec Glm4Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = GlmBlock(config, model);
  block.update_norms = true;
  return block;
}

BlockSpec SeedOssBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = config.Flag("attention_bias", true);
  block.output_bias = config.Flag("attention_out_bias", false);
  block.mlp_bias = config.Flag("mlp_bias", false);
  return block;
}

BlockSpec Ernie45Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  block.qkv_bias = block.output_bias = block.mlp_bias = config.Flag("use_bias", false);
  return block;
}

BlockSpec Starcoder2Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block;
  block.layer_norm = block.norm_bias = true;
  block.qkv_bias = block.output_bias = block.mlp_bias = config.Flag("use_bias", true);
  block.gated = false;
  block.activation = ReadUngatedActivation(config, "gelu_pytorch_tanh");
  block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
  block.windows = ReadWindows(config, model, 0, AllLayers(model));
  return block;
}

BlockSpec NemotronBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = ArceeBlock(config, model);
  block.layer_norm = block.norm_bias = true;
  block.norm_offset = 1;
  return block;
}

BlockSpec CohereBlock(const ConfigReader& config, const ModelConfig& model) {
  Check(model.head_dim * model.heads == model.hidden, "{}: head_dim is {}, expected hidden_size / heads, {}",
        config.file(), model.head_dim, model.hidden / model.heads);
  Check(!config.Flag("use_qk_norm", false), "{}: use_qk_norm is not supported", config.file());
  BlockSpec block = PlainBlock(config, model);
  block.input_norms = false;
  block.layer_norm = block.parallel = block.shared_norm = true;
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.logit_scale = static_cast<float>(config.Number("logit_scale", 1e-9, 1e9));
  return block;
}

BlockSpec Cohere2Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = CohereBlock(config, model);
  const std::vector<bool> slides =
      SlidingLayers(config, model, FullEvery(Pattern(config, "sliding_window_pattern", 4)));
  block.windows = WindowsOf(config, model, slides);
  block.ropes = RopesOf(slides, RopeChoice::kFirst, RopeChoice::kNone);
  return block;
}

}  // namespace shiftrt
