// SPDX-License-Identifier: Apache-2.0
// The settings in a checkpoint's config.json, checked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/block_spec.h"
#include "models/quantisation.h"

namespace shiftrt {

enum class RopeKind { kDefault, kLinear, kLlama3, kYarn, kLongRope };

struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 1;                       // yarn and longrope, on cos and sin
  bool truncate = true;                              // yarn: correction range rounded to whole dimensions
  int64_t original_max_positions = 0;                // llama3, yarn, longrope, query_beta
  // longrope: divisors of the frequencies, of sequences of up to original_max_positions tokens and of longer ones; one
  // for each pair of elements that is rotated.
  std::vector<double> short_factors, long_factors;
  double partial = 1;        // the share of a head's elements that are rotated, from the first on
  bool interleaved = false;  // the pairs are neighbours, not one element of each half
  // Rotated queries at position p are multiplied by 1 + query_beta * log(1 + floor(p / original_max_positions)).
  double query_beta = 0;

  int64_t RotaryDim(int64_t head_dim) const { return static_cast<int64_t>(static_cast<double>(head_dim) * partial); }
  // The factor on rotated queries at this position.
  float QueryScale(int64_t position) const;
  // True if a sequence of so many tokens has the long factors.
  bool IsLong(int64_t tokens) const { return kind == RopeKind::kLongRope && tokens > original_max_positions; }
};

struct ModelConfig {
  std::string family;  // the name of a row of models/families.cc: "llama", "phi3"
  int64_t hidden = 0;
  int64_t intermediate = 0;  // units of an MLP, of the widest where blocks differ: MlpUnits() has a block's own
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  double rms_eps = 1e-6;       // for all norms, LayerNorm too
  RopeSpec rope, second_rope;  // BlockSpec::ropes says which layers have the second
  BlockSpec block;
  Quantisation quantisation;
  bool tied_head = false;
  int32_t bos_token = -1;           // -1: none
  std::vector<int32_t> eos_tokens;  // may be empty

  int64_t query_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
  // The width of what the heads of a mixer give, which the last projection of its half reads; the widest where the
  // mixers of layers differ.
  int64_t heads_dim() const {
    return std::max({block.attention ? query_dim() : 0, block.gated_delta ? block.delta.values() : 0,
                     block.short_convolution ? block.convolution.channels : 0});
  }
};

// Parses the text of a config.json; `name` stands for the file in errors. Throws Error for invalid JSON, a missing or
// out-of-range number, an unknown architecture, or a setting that is not supported (another activation, another rope
// type, another quantisation): each by name.
ModelConfig ParseConfig(std::string_view text, const std::string& name);
// The same for JSON that is parsed already, such as that of a GGUF file.
ModelConfig ConfigFromJson(const nlohmann::json& json, const std::string& name);
// The config.json of the text model alone, for one that describes a model of text and images; else the same.
nlohmann::json TextConfig(const nlohmann::json& json, const std::string& name);
inline constexpr uint64_t kMaxConfigBytes = 1 << 24;
// Reads the configuration from a file. The EOS tokens of a generation_config.json next to it are added, because
// instruct models often list the token that ends a turn only there.
ModelConfig LoadConfig(const std::filesystem::path& file);

// The head_dim / 2 inverse frequencies in radians per position, and the factor on cos and sin. The frequencies of pairs
// that are not rotated are 0 and stand after the others. Source: transformers, modeling_rope_utils.py.
struct RopeFrequencies {
  std::vector<float> inverse;
  float scale = 1;
};
// `is_long`: those of sequences for which RopeSpec::IsLong().
RopeFrequencies MakeRopeFrequencies(const RopeSpec& rope, int64_t head_dim, bool is_long = false);
inline RopeFrequencies MakeRopeFrequencies(const ModelConfig& config) {
  return MakeRopeFrequencies(config.rope, config.head_dim);
}

}  // namespace shiftrt
