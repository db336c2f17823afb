// SPDX-License-Identifier: Apache-2.0
#include "models/gguf_mixers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/check.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr int64_t kAttentionEvery = 4;  // one in so many layers has attention, unless the file says otherwise
constexpr const char *kRecurrentLayers = "attention.recurrent_layers", *kKvHeads = "attention.head_count_kv",
                     *kConvolutionWidth = "shortconv.l_cache";

// The settings of gated delta networks. `layers` counts those of the model alone.
void ReadGatedDelta(GgufKeys& keys, int64_t layers, Json& config) {
  const int64_t heads = keys.Integer("ssm.time_step_rank"), dim = keys.Integer("ssm.state_size");
  keys.OnlyInteger("ssm.inner_size", heads * dim, "keys and values of a head are equally wide in llama.cpp");
  config["linear_num_value_heads"] = heads;
  config["linear_num_key_heads"] = keys.Integer("ssm.group_count");
  config["linear_key_head_dim"] = config["linear_value_head_dim"] = dim;
  config["linear_conv_kernel_dim"] = keys.Integer("ssm.conv_kernel");
  keys.Ignore("rope.dimension_sections");  // it divides positions in images; text has all alike
  const int64_t interval = keys.Integer("full_attention_interval", kAttentionEvery);
  std::vector<bool> recurrent;
  if (keys.HasList(kRecurrentLayers)) recurrent = keys.Flags(kRecurrentLayers);
  Check(recurrent.empty() || std::ssize(recurrent) >= layers, "{}: {} has {} entries for {} layers", keys.file(),
        keys.Full(kRecurrentLayers), recurrent.size(), layers);
  Check(interval > 0, "{}: {} is 0", keys.file(), keys.Full("full_attention_interval"));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool is = recurrent.empty() ? (layer + 1) % interval != 0 : recurrent[layer];
    config["layer_types"].push_back(is ? "linear_attention" : "full_attention");
  }
}

// The settings of short convolutions, which the layers without key-value heads have.
void ReadShortConvolutions(GgufKeys& keys, int64_t layers, Json& config) {
  config["conv_L_cache"] = keys.Integer(kConvolutionWidth);
  const std::vector<int64_t> heads = keys.Integers(kKvHeads);
  Check(std::ssize(heads) == layers, "{}: {} has {} entries for {} layers", keys.file(), keys.Full(kKvHeads),
        heads.size(), layers);
  for (const int64_t of_layer : heads) config["layer_types"].push_back(of_layer == 0 ? "conv" : "full_attention");
}

// Adds the sizes of gated delta networks, and which layers have one.
void WriteGatedDelta(const ModelConfig& config, const std::string& prefix, GgufWriter& file,
                     std::vector<std::string>& notes) {
  const GatedDeltaShape& delta = config.block.delta;
  file.AddInteger(prefix + "ssm.conv_kernel", delta.conv_width);
  file.AddInteger(prefix + "ssm.state_size", delta.key_dim);
  file.AddInteger(prefix + "ssm.group_count", delta.key_heads);
  file.AddInteger(prefix + "ssm.time_step_rank", delta.value_heads);
  file.AddInteger(prefix + "ssm.inner_size", delta.values());
  // Which of the pairs turn by the position in time, in height and in width of an image: text has all alike.
  const auto pairs = static_cast<int32_t>(config.rope.RotaryDim(config.head_dim) / 2);
  file.AddIntegers(prefix + "rope.dimension_sections", {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0});
  std::vector<bool> recurrent;
  bool regular = true;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    recurrent.push_back(config.block.MixerOf(layer) == Mixer::kGatedDelta);
    regular = regular && recurrent.back() == ((layer + 1) % kAttentionEvery != 0);
  }
  file.AddInteger(prefix + "full_attention_interval", kAttentionEvery);
  if (regular) return;
  file.AddFlags(prefix + kRecurrentLayers, recurrent);
  notes.push_back(
      fmt::format("The layers with a gated delta network are listed in {}{}. A program that does not read "
                  "this key takes other layers for those and cannot load the file.",
                  prefix, kRecurrentLayers));
}

void WriteShortConvolutions(const ModelConfig& config, const std::string& prefix, GgufWriter& file) {
  file.AddInteger(prefix + kConvolutionWidth, config.block.convolution.width);
  std::vector<int32_t> heads;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    heads.push_back(config.block.MixerOf(layer) == Mixer::kAttention ? static_cast<int32_t>(config.kv_heads) : 0);
  file.AddIntegers(prefix + kKvHeads, heads);
}

}  // namespace

void ReadGgufMixers(const GgufArchitecture& architecture, GgufKeys& keys, int64_t layers, Json& config) {
  if (architecture.gated_delta) ReadGatedDelta(keys, layers, config);
  if (architecture.short_convolution) ReadShortConvolutions(keys, layers, config);
}

std::optional<int64_t> ReadGgufKvHeads(const GgufArchitecture& architecture, GgufKeys& keys) {
  if (!architecture.short_convolution) return std::nullopt;
  const std::vector<int64_t> heads = keys.Integers(kKvHeads);
  const int64_t most = heads.empty() ? 0 : *std::max_element(heads.begin(), heads.end());
  for (const int64_t of_layer : heads)
    Check(of_layer == 0 || of_layer == most, "{}: {} has {} and {}, expected 0 and one other number", keys.file(),
          keys.Full(kKvHeads), of_layer, most);
  Check(most > 0, "{}: {} has no layer with attention", keys.file(), keys.Full(kKvHeads));
  return most;
}

void AddGgufMixers(const ModelConfig& config, const GgufArchitecture& architecture, GgufWriter& file,
                   std::vector<std::string>& notes) {
  const std::string prefix = std::string(architecture.name) + ".";
  if (architecture.gated_delta) WriteGatedDelta(config, prefix, file, notes);
  if (architecture.short_convolution) WriteShortConvolutions(config, prefix, file);
}

}  // namespace shiftrt
