// SPDX-License-Identifier: Apache-2.0
#include "models/families.h"

#include <algorithm>
#include <cmath>

#include "models/block_tensors.h"
#include "models/config_reader.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

float InverseRoot(double x) { return 1.0f / std::sqrt(static_cast<float>(x)); }

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

// The number of layers of which the last one is different.
int64_t Pattern(const ConfigReader& config, const char* key, int64_t fallback) {
  return config.Integer(key, 1, 1 << 20, fallback);
}
auto FullEvery(int64_t pattern) {
  return [pattern](int64_t layer) { return (layer + 1) % pattern != 0; };
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

// An MLP without gate in a Llama block.
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
  Check(model.rope.kind == RopeKind::kDefault || model.rope.kind == RopeKind::kLongRope,
        "{}: of RoPE scaling, Phi-3 is supported with longrope and with none", config.file());
  BlockSpec block = PlainBlock(config, model);
  block.windows = ReadWindows(config, model, 0, AllLayers(model));
  return block;
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

// Released configs say "gelu" and mean its tanh form, as transformers does.
BlockSpec Gemma1Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = AnyGemmaBlock(config);
  const std::string activation = config.Word("hidden_act", "gelu_pytorch_tanh");
  block.activation = activation == "gelu" ? Activation::kGeluTanh : ReadActivation(config, "hidden_act", "");
  block.attention_scale = InverseRoot(static_cast<double>(model.head_dim));
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

// Norms of queries and keys, and after each half, but none before.
BlockSpec NormsAfter(BlockSpec block) {
  block.input_norms = false;
  block.update_norms = block.qk_norm = true;
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

// With a window, the layers without one have no rotary embedding.
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

float Multiplier(const ConfigReader& config, const char* key) {
  return static_cast<float>(config.Number(key, 1e-9, 1e9, 1));
}

BlockSpec GraniteBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = LlamaBlock(config, model);
  block.attention_scale = Multiplier(config, "attention_multiplier");
  block.residual_multiplier = Multiplier(config, "residual_multiplier");
  block.embedding_multiplier = Multiplier(config, "embedding_multiplier");
  block.logit_scale = 1 / Multiplier(config, "logits_scaling");
  return block;
}

// Granite's multipliers, of which that of the logits is not a divisor here, and norms of the updates.
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

// Attention and MLP side by side, after one LayerNorm without bias.
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

// Layers without window have no rotary embedding.
BlockSpec Cohere2Block(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = CohereBlock(config, model);
  const std::vector<bool> slides =
      SlidingLayers(config, model, FullEvery(Pattern(config, "sliding_window_pattern", 4)));
  block.windows = WindowsOf(config, model, slides);
  block.ropes = RopesOf(slides, RopeChoice::kFirst, RopeChoice::kNone);
  return block;
}

}  // namespace

const std::vector<Family>& Families() {
  using B = BlockWeights;
  // Norms after the halves, with norms before them or without.
  static const std::vector<TensorPlace> kGemmaPlaces = {
      {"post_attention_layernorm.weight", {&B::attention_update_norm}},
      {"pre_feedforward_layernorm.weight", {&B::post_norm}},
      {"post_feedforward_layernorm.weight", {&B::mlp_update_norm}}};
  static const std::vector<TensorPlace> kPlacesAfter = {
      {"post_attention_layernorm.weight", {&B::attention_update_norm}},
      {"post_feedforward_layernorm.weight", {&B::mlp_update_norm}}};
  static const std::vector<Family> families = {
      {.architecture = "LlamaForCausalLM",
       .name = "llama",
       .block = LlamaBlock,
       .since = "0.1.0",
       .models = "Llama 2, Llama 3.x, Vicuna, SmolLM 2",
       .harmless = {"is_llama_config"}},
      {.architecture = "MistralForCausalLM",
       .name = "mistral",
       .block = MistralBlock,
       .since = "0.1.0",
       .models = "Mistral 7B, Mistral Nemo, Mistral Small 3"},
      {.architecture = "MinistralForCausalLM", .name = "ministral", .block = MinistralBlock, .models = "Ministral 8B"},
      {.architecture = "Ministral3ForCausalLM",
       .name = "ministral3",
       .block = Ministral3Block,
       .models = "Ministral 3",
       .defaults =
           R"({"head_dim": 128, "rms_norm_eps": 1e-5, "rope_parameters": {"type": "yarn", "rope_theta": 1000000.0,
                       "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
                       "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}})",
       .rope = {.query_beta = true},
       .harmless = {"max_position_embeddings"}},  // among the settings of RoPE
      {.architecture = "Qwen2ForCausalLM",
       .name = "qwen2",
       .block = Qwen2Block,
       .since = "0.1.0",
       .models = "Qwen 1.5, Qwen 2, Qwen 2.5",
       .harmless = {"attention_bias"}},  // queries, keys and values always have biases
      {.architecture = "Qwen3ForCausalLM", .name = "qwen3", .block = Qwen3Block, .since = "0.1.0", .models = "Qwen 3"},
      {.architecture = "Phi3ForCausalLM",
       .name = "phi3",
       .block = Phi3Block,
       .since = "0.1.0",
       .models = "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
       .defaults = R"({"rms_norm_eps": 1e-5})",
       .rope = {.partial = 1, .longrope = true},
       .places = {{"self_attn.qkv_proj.weight", {&B::q, &B::k, &B::v}},
                  {"mlp.gate_up_proj.weight", {&B::gate, &B::up}}}},
      {.architecture = "GemmaForCausalLM",
       .name = "gemma",
       .block = Gemma1Block,
       .models = "Gemma, 2B and 7B, CodeGemma",
       .defaults = R"({"tie_word_embeddings": true, "head_dim": 256})",
       .harmless = {"hidden_activation"}},
      {.architecture = "Gemma2ForCausalLM",
       .name = "gemma2",
       .block = Gemma2Block,
       .since = "0.1.0",
       .models = "Gemma 2",
       .defaults = R"({"tie_word_embeddings": true, "head_dim": 256, "query_pre_attn_scalar": 256,
                       "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})",
       .harmless = {"hidden_act", "sliding_window_size"},
       .places = kGemmaPlaces},
      {.architecture = "Gemma3ForCausalLM",
       .name = "gemma3",
       .model_type = "gemma3_text",
       .block = Gemma3Block,
       .models = "Gemma 3, 270M to 27B",
       // Released configs leave out what they have in common with these.
       .defaults =
           R"({"tie_word_embeddings": true, "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                       "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                       "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                       "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})",
       .rope = {.by_layer_type = true, .local_theta = "rope_local_base_freq"},
       .harmless = {"hidden_act", "_sliding_window_pattern"},
       .places = kGemmaPlaces},
      {.architecture = "VaultGemmaForCausalLM",
       .name = "vaultgemma",
       .block = VaultGemmaBlock,
       .models = "VaultGemma 1B",
       .defaults = R"({"tie_word_embeddings": true, "head_dim": 256, "query_pre_attn_scalar": 256,
                       "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})",
       .harmless = {"hidden_act"},
       .places = {{"pre_feedforward_layernorm.weight", {&B::post_norm}}}},
      {.architecture = "SmolLM3ForCausalLM",
       .name = "smollm3",
       .block = SmolLm3Block,
       .models = "SmolLM 3",
       .defaults = R"({"tie_word_embeddings": true, "rope_theta": 2000000.0})",
       .harmless = {"max_window_layers"}},
      {.architecture = "Olmo2ForCausalLM",
       .name = "olmo2",
       .block = Olmo2Block,
       .models = "OLMo 2",
       .defaults = R"({"rms_norm_eps": 1e-5})",
       .places = kPlacesAfter},
      {.architecture = "Olmo3ForCausalLM",
       .name = "olmo3",
       .block = Olmo3Block,
       .models = "OLMo 3",
       .defaults = R"({"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096})",
       .rope = {.by_layer_type = true},
       .places = kPlacesAfter},
      {.architecture = "GraniteForCausalLM", .name = "granite", .block = GraniteBlock, .models = "Granite 3"},
      {.architecture = "HyperCLOVAXForCausalLM",
       .name = "hyperclovax",
       .block = HyperClovaXBlock,
       .models = "HyperCLOVA X SEED Think 14B",
       .places = {{"post_norm1.weight", {&B::attention_update_norm}}, {"post_norm2.weight", {&B::mlp_update_norm}}}},
      {.architecture = "GraniteMoeHybridForCausalLM",
       .name = "granite4",
       .model_type = "granitemoehybrid",
       .block = Granite4Block,
       .models = "Granite 4 without Mamba layers and experts",
       .intermediate = "shared_intermediate_size",
       .harmless = {"intermediate_size", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef",
                    "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state",
                    "mamba_expand", "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "time_step_limit",
                    "normalization_function", "init_method"},
       .places = {{"shared_mlp.input_linear.weight", {&B::gate, &B::up}},
                  {"shared_mlp.output_linear.weight", {&B::down}}}},
      {.architecture = "GlmForCausalLM",
       .name = "glm",
       .block = GlmBlock,
       .models = "GLM-4-9B, GLM-Edge",
       .defaults = R"({"head_dim": 128, "rms_norm_eps": 1.5625e-07, "num_key_value_heads": 2})",
       .rope = {.partial = 0.5, .interleaved = true},
       .places = {{"mlp.gate_up_proj.weight", {&B::gate, &B::up}}}},
      {.architecture = "Glm4ForCausalLM",
       .name = "glm4",
       .block = Glm4Block,
       .models = "GLM-4-0414, 9B and 32B",
       .defaults = R"({"head_dim": 128, "rms_norm_eps": 1.5625e-07, "num_key_value_heads": 2})",
       .rope = {.partial = 0.5, .interleaved = true},
       .places = {{"post_self_attn_layernorm.weight", {&B::attention_update_norm}},
                  {"post_mlp_layernorm.weight", {&B::mlp_update_norm}},
                  {"mlp.gate_up_proj.weight", {&B::gate, &B::up}}}},
      {.architecture = "SeedOssForCausalLM",
       .name = "seed_oss",
       .block = SeedOssBlock,
       .models = "Seed-OSS-36B",
       .defaults = R"({"head_dim": 128, "num_key_value_heads": 8})"},
      {.architecture = "Exaone4ForCausalLM",
       .name = "exaone4",
       .block = Exaone4Block,
       .models = "EXAONE 4.0, 1.2B and 32B",
       .defaults = R"({"rms_norm_eps": 1e-5, "sliding_window": 4096})",
       .places = kPlacesAfter},
      {.architecture = "Ernie4_5ForCausalLM",
       .name = "ernie4_5",
       .block = Ernie45Block,
       .models = "ERNIE 4.5 0.3B",
       .defaults = R"({"tie_word_embeddings": true, "rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128,
                       "rope_theta": 500000.0})",
       .rope = {.interleaved = true}},
      {.architecture = "NemotronForCausalLM",
       .name = "nemotron",
       .block = NemotronBlock,
       .models = "Nemotron 4, Minitron",
       .defaults = R"({"norm_eps": 1e-5})",
       .eps = "norm_eps",
       .rope = {.partial = 0.5}},
      {.architecture = "ArceeForCausalLM",
       .name = "arcee",
       .block = ArceeBlock,
       .models = "AFM-4.5B",
       .defaults = R"({"rms_norm_eps": 1e-5})"},
      {.architecture = "Jais2ForCausalLM",
       .name = "jais2",
       .block = Jais2Block,
       .models = "Jais 2, 8B and 70B",
       .defaults = R"({"layer_norm_eps": 1e-5})",
       .eps = "layer_norm_eps"},
      {.architecture = "CwmForCausalLM",
       .name = "cwm",
       .block = CwmBlock,
       .models = "Code World Model 32B",
       .defaults = R"({"rms_norm_eps": 1e-5, "head_dim": 128})"},
      {.architecture = "CohereForCausalLM",
       .name = "cohere",
       .block = CohereBlock,
       .models = "Command R, Aya 23",
       .defaults =
           R"({"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": true, "rope_theta": 500000.0})",
       .eps = "layer_norm_eps",
       .rope = {.interleaved = true},
       .harmless = {"model_max_length"},
       .places = {{"input_layernorm.weight", {&B::shared_norm}}}},
      {.architecture = "Cohere2ForCausalLM",
       .name = "cohere2",
       .block = Cohere2Block,
       .models = "Command R7B, Command A",
       .defaults = R"({"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": true,
                       "sliding_window": 4096})",
       .eps = "layer_norm_eps",
       .rope = {.interleaved = true},
       .harmless = {"layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
                    "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding"},
       .places = {{"input_layernorm.weight", {&B::shared_norm}}}},
      {.architecture = "Starcoder2ForCausalLM",
       .name = "starcoder2",
       .block = Starcoder2Block,
       .models = "StarCoder 2, 3B, 7B and 15B",
       .defaults = R"({"norm_epsilon": 1e-5, "tie_word_embeddings": true})",
       .eps = "norm_epsilon",
       .harmless = {"norm_type", "mlp_type", "embedding_dropout"},
       .places = {{"mlp.c_fc.weight", {&B::up}},
                  {"mlp.c_proj.weight", {&B::down}},
                  {"mlp.c_fc.bias", {&B::up_bias}},
                  {"mlp.c_proj.bias", {&B::down_bias}}}},
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
  return CheckpointTensors(config, family->places);
}

std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config, const std::vector<TensorPlace>& places) {
  std::vector<CheckpointTensor> stored;
  for (const BlockTensor& row : BlockTensors()) {
    std::vector<int64_t> shape = row.Shape(config);
    if (shape.empty()) continue;
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
