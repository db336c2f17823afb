// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <algorithm>
#include <cmath>

#include "models/config_reader.h"
#include "models/families.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSide = 1 << 22;  // hidden, vocabulary, ...: beyond any model, small enough that products fit
constexpr int64_t kMaxPositions = int64_t{1} << 31;

// The object with the RoPE settings: `rope_scaling` or, since transformers 5, `rope_parameters`. If both are there, the
// former is used unless it is empty, as in transformers. Null if there is none.
const Json* FindRopeSettings(const Json& config, const std::string& file) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    Check(found->is_object(), "{}: {} is not an object", file, key);
    for (const auto& [name, value] : found->items())
      Check(!value.is_object(), "{}: {} of its own for layers of type {} is not supported", file, key, name);
    if (!found->empty()) return &*found;
  }
  return nullptr;
}

void ParseLlama3(const ConfigReader& settings, const std::string& file, RopeSpec& rope) {
  rope.kind = RopeKind::kLlama3;
  rope.factor = settings.Number("factor", 1, 1e6);
  rope.low_freq_factor = settings.Number("low_freq_factor", 1e-6, 1e6);
  rope.high_freq_factor = settings.Number("high_freq_factor", 1e-6, 1e6);
  Check(rope.high_freq_factor > rope.low_freq_factor, "{}: high_freq_factor {} is not above low_freq_factor {}", file,
        rope.high_freq_factor, rope.low_freq_factor);
}

void ParseYarn(const ConfigReader& settings, int64_t max_positions, RopeSpec& rope) {
  const double stretch = static_cast<double>(max_positions) / static_cast<double>(rope.original_max_positions);
  rope.kind = RopeKind::kYarn;
  rope.factor = settings.Has("factor") ? settings.Number("factor", 1, 1e6) : std::max(stretch, 1.0);
  rope.beta_fast = settings.Number("beta_fast", 1e-6, 1e6, 32);
  rope.beta_slow = settings.Number("beta_slow", 1e-6, 1e6, 1);
  rope.truncate = settings.Flag("truncate", true);
  const auto scale = [&](double mscale) { return 0.1 * mscale * std::log(rope.factor) + 1; };
  const double mscale = settings.Number("mscale", 0, 1e3, 0), all_dim = settings.Number("mscale_all_dim", 0, 1e3, 0);
  const double inferred = mscale > 0 && all_dim > 0 ? scale(mscale) / scale(all_dim) : scale(1);
  rope.attention_factor = settings.Number("attention_factor", 1e-6, 1e3, inferred);
}

RopeSpec ParseRope(const Json& json, const std::string& file, int64_t max_positions) {
  const ConfigReader config(json, file);
  const Json* found = FindRopeSettings(json, file);
  const Json none = Json::object();
  const ConfigReader settings(found != nullptr ? *found : none, file);

  RopeSpec rope;
  // A base near 1 would make the divisor log(base) vanish.
  rope.theta = settings.Number("rope_theta", 2, 1e12, config.Number("rope_theta", 2, 1e12, 10000));
  const double share = settings.Number("partial_rotary_factor", 0, 1, config.Number("partial_rotary_factor", 0, 1, 1));
  Check(share == 1, "{}: partial_rotary_factor {} is not supported", file, share);
  // A value beside the settings takes precedence over one among them, as in transformers.
  rope.original_max_positions =
      config.Integer("original_max_position_embeddings", 1, kMaxPositions,
                     settings.Integer("original_max_position_embeddings", 1, kMaxPositions, max_positions));
  const std::string kind = settings.Word("rope_type", settings.Word("type", "default"));
  if (kind == "linear") {
    rope.kind = RopeKind::kLinear;
    rope.factor = settings.Number("factor", 1, 1e6);
  } else if (kind == "llama3") {
    ParseLlama3(settings, file, rope);
  } else if (kind == "yarn") {
    ParseYarn(settings, max_positions, rope);
  } else {
    Check(kind == "default", "{}: rope type \"{}\" is not supported (known: default, linear, llama3, yarn)", file,
          kind);
  }
  return rope;
}

// Reads one token id or a list of them.
std::vector<int32_t> TokenList(const Json& json, const char* key, const std::string& file) {
  std::vector<int32_t> tokens;
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) return tokens;
  for (const Json& token : value->is_array() ? *value : Json::array({*value})) {
    // A value that the program made, not the parser, may be signed.
    const bool valid = token.is_number_integer() && token >= 0 && token < kMaxSide;
    Check(valid, "{}: {}: {} is not a token id", file, key, Shown(token));
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

const Family& ParseArchitecture(const Json& json, const std::string& file) {
  const auto names = json.find("architectures");
  Check(names != json.end() && names->is_array() && names->size() == 1 && names->front().is_string(),
        "{}: architectures is not a list of one name", file);
  const auto& name = names->front().get_ref<const std::string&>();
  if (const Family* family = FindFamily(name)) return *family;
  std::vector<std::string_view> known;
  for (const Family& family : Families()) known.push_back(family.architecture);
  Fail("{}: architecture {} is not supported (known: {})", file, name, fmt::join(known, ", "));
}

void ParseShape(const ConfigReader& config, const Family& family, ModelConfig& out) {
  const std::string& file = config.file();
  out.hidden = config.Integer("hidden_size", 1, kMaxSide);
  out.intermediate = config.Integer("intermediate_size", 1, kMaxSide);
  out.layers = config.Integer("num_hidden_layers", 1, 10000);
  out.heads = config.Integer("num_attention_heads", 1, 65536);
  out.kv_heads = config.Integer("num_key_value_heads", 1, 65536, out.heads);
  out.vocab = config.Integer("vocab_size", 1, kMaxSide);
  out.max_positions = config.Integer("max_position_embeddings", 1, kMaxPositions);
  Check(out.heads % out.kv_heads == 0, "{}: {} attention heads do not divide over {} key/value heads", file, out.heads,
        out.kv_heads);
  Check(config.Has("head_dim") || family.head_dim > 0 || out.hidden % out.heads == 0,
        "{}: hidden_size {} does not divide over {} heads", file, out.hidden, out.heads);
  out.head_dim = config.Integer("head_dim", 1, 4096, family.head_dim > 0 ? family.head_dim : out.hidden / out.heads);
  Check(out.head_dim % 2 == 0 && out.head_dim <= 4096, "{}: head_dim {} is not an even number up to 4096", file,
        out.head_dim);
}

}  // namespace

ModelConfig ParseConfig(std::string_view text, const std::string& name) {
  return ConfigFromJson(ParseJson(text, name), name);
}

ModelConfig ConfigFromJson(const Json& json, const std::string& name) {
  Check(json.is_object(), "{}: not a JSON object", name);
  const ConfigReader config(json, name);
  const Family& family = ParseArchitecture(json, name);
  Check(!config.Has("quantization_config"), "{}: quantization_config: quantised weights are not supported", name);

  ModelConfig out;
  out.family = family.name;
  ParseShape(config, family, out);
  out.rms_eps = config.Number("rms_norm_eps", 0, 1, family.rms_eps);
  out.rope = ParseRope(json, name, out.max_positions);
  out.block = family.block(config, out);
  out.tied_head = config.Flag("tie_word_embeddings", family.tied_head);
  out.bos_token = static_cast<int32_t>(config.Integer("bos_token_id", 0, kMaxSide - 1, -1));
  out.eos_tokens = TokenList(json, "eos_token_id", name);
  return out;
}

ModelConfig LoadConfig(const std::filesystem::path& file) {
  ModelConfig config = ParseConfig(ReadFile(file, kMaxConfigBytes), file.string());
  const auto path = file.parent_path() / "generation_config.json";
  if (!std::filesystem::exists(path)) return config;
  const Json generation = ParseJson(ReadFile(path, kMaxConfigBytes), path.string());
  Check(generation.is_object(), "{}: not a JSON object", path.string());
  for (const int32_t token : TokenList(generation, "eos_token_id", path.string()))
    if (std::find(config.eos_tokens.begin(), config.eos_tokens.end(), token) == config.eos_tokens.end())
      config.eos_tokens.push_back(token);
  return config;
}

}  // namespace shiftrt
