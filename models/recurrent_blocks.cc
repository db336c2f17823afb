// SPDX-License-Identifier: Apache-2.0
// The families whose layers have other mixers than attention.
#include <algorithm>
#include <utility>

#include "models/config_reader.h"
#include "models/family_block_parts.h"
#include "models/family_blocks.h"

namespace shiftrt {

namespace {

// The mixers that `layer_types` says, in which `word` stands for `other`.
std::vector<Mixer> NamedMixers(const ConfigReader& config, const ModelConfig& model, const char* word, Mixer other) {
  std::vector<Mixer> mixers;
  const nlohmann::json& types = config["layer_types"];
  Check(types.is_array() && std::ssize(types) == model.layers, "{}: layer_types is not a list of {} words",
        config.file(), model.layers);
  for (const nlohmann::json& type : types) {
    Check(type == "full_attention" || type == word, "{}: layer type {} is not supported", config.file(), Shown(type));
    mixers.push_back(type == "full_attention" ? Mixer::kAttention : other);
  }
  return mixers;
}

// The mixer of each layer: as `layer_types` says, or else attention in every fourth layer, or as often as
// `full_attention_interval` says.
std::vector<Mixer> ReadMixers(const ConfigReader& config, const ModelConfig& model) {
  if (config.Has("layer_types")) return NamedMixers(config, model, "linear_attention", Mixer::kGatedDelta);
  std::vector<Mixer> mixers;
  const auto delta = FullEvery(Pattern(config, "full_attention_interval", 4));
  for (int64_t layer = 0; layer < model.layers; ++layer)
    mixers.push_back(delta(layer) ? Mixer::kGatedDelta : Mixer::kAttention);
  return mixers;
}

// The blocks of Qwen 3 Next and 3.5: gated delta networks in some layers, and attention with gates in the others.
BlockSpec GatedDeltaBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = PlainBlock(config, model);
  Check(block.activation == Activation::kSilu, "{}: hidden_act is not silu, which the convolutions need",
        config.file());
  block.norm_offset = 1;
  block.qkv_bias = block.output_bias = config.Flag("attention_bias", false);
  block.qk_norm = block.attention_gate = true;
  GatedDeltaShape& delta = block.delta;
  delta.key_heads = config.Integer("linear_num_key_heads", 1, 65536);
  delta.value_heads = config.Integer("linear_num_value_heads", 1, 65536);
  delta.key_dim = config.Integer("linear_key_head_dim", 1, 4096);
  delta.value_dim = config.Integer("linear_value_head_dim", 1, 4096);
  delta.conv_width = config.Integer("linear_conv_kernel_dim", 1, 64);
  Check(delta.value_heads % delta.key_heads == 0,
        "{}: linear_num_value_heads {} does not divide over linear_num_key_heads {}", config.file(), delta.value_heads,
        delta.key_heads);
  block.SetMixers(ReadMixers(config, model));
  return block;
}

}  // namespace

BlockSpec Qwen3NextBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = GatedDeltaBlock(config, model);
  ReadMixture(config, model, "num_experts", "moe_intermediate_size", block);
  ReadSharedExpert(config, block);
  block.mixture.normalised = config.Flag("norm_topk_prob", true);
  return block;
}

BlockSpec Qwen35Block(const ConfigReader& config, const ModelConfig& model) {
  Check(config.Flag("attn_output_gate", true), "{}: attn_output_gate is false, which is not supported", config.file());
  return GatedDeltaBlock(config, model);
}

BlockSpec Qwen35MoeBlock(const ConfigReader& config, const ModelConfig& model) {
  BlockSpec block = Qwen35Block(config, model);
  ReadMixture(config, model, "num_experts", "moe_intermediate_size", block);
  Check(block.mixed && !block.dense, "{}: layers without experts are not supported", config.file());
  ReadSharedExpert(config, block);
  block.mixture.normalised = true;
  return block;
}

BlockSpec Lfm2Block(const ConfigReader& config, const ModelConfig& model) {
  Check(!config.Flag("conv_bias", false), "{}: conv_bias is true, which is not supported", config.file());
  Check(config.Flag("block_use_swiglu", true) && config.Flag("use_pos_enc", true),
        "{}: block_use_swiglu false and use_pos_enc false are not supported", config.file());
  BlockSpec block = PlainBlock(config, model);
  Check(block.activation == Activation::kSilu, "{}: hidden_act is not silu, which LFM2 has", config.file());
  block.qk_norm = true;
  block.convolution = {model.hidden, config.Integer("conv_L_cache", 1, 64, 3)};
  // transformers has attention in all layers if neither key is there.
  std::vector<Mixer> mixers(model.layers, Mixer::kAttention);
  if (config.Has("full_attn_idxs") && !config.Has("layer_types")) {
    const nlohmann::json& attend = config["full_attn_idxs"];
    Check(attend.is_array(), "{}: full_attn_idxs is {}, expected a list", config.file(), Shown(attend));
    for (int64_t layer = 0; layer < model.layers; ++layer)
      if (std::find(attend.begin(), attend.end(), layer) == attend.end()) mixers[layer] = Mixer::kShortConvolution;
  }
  if (config.Has("layer_types")) mixers = NamedMixers(config, model, "conv", Mixer::kShortConvolution);
  block.SetMixers(std::move(mixers));
  return block;
}

int64_t Lfm2Units(const ConfigReader& config, int64_t stated) {
  const bool adjusted = config.Flag("block_auto_adjust_ff_dim", true),
             scaled = !config.IsNull("block_ffn_dim_multiplier");
  const double factor = config.Number("block_ffn_dim_multiplier", 1e-3, 1e3, 1);
  const int64_t multiple = config.Integer("block_multiple_of", 1, 1 << 20, 256);
  if (!adjusted) return stated;
  const auto units = static_cast<int64_t>(2 * static_cast<double>(stated) / 3);
  if (!scaled) return units;
  const auto wanted = static_cast<int64_t>(factor * static_cast<double>(units));
  return (wanted + multiple - 1) / multiple * multiple;
}

}  // namespace shiftrt
