#include "models/config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// One level of a config file, with every value checked as it is read. null counts as absent.
class Reader {
 public:
  Reader(const Json& object, const std::string& file) : object_(object), file_(file) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const Json& operator[](const char* key) const { return object_[key]; }

  int64_t Integer(const char* key, int64_t low, int64_t high) const {
    Check(Has(key), "{}: {} is missing", file_, key);
    const Json& value = object_[key];
    Check(value.is_number_integer(), "{}: {} is {}, expected a whole number", file_, key, value.dump());
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX : true;
    Check(fits && value.get<int64_t>() >= low && value.get<int64_t>() <= high, "{}: {} is {}, expected {} to {}", file_,
          key, value.dump(), low, high);
    return value.get<int64_t>();
  }
  int64_t Integer(const char* key, int64_t low, int64_t high, int64_t otherwise) const {
    return Has(key) ? Integer(key, low, high) : otherwise;
  }
  double Number(const char* key, double low, double high, double otherwise) const {
    if (!Has(key)) return otherwise;
    const Json& value = object_[key];
    Check(value.is_number(), "{}: {} is {}, expected a number", file_, key, value.dump());
    const double number = value.get<double>();
    Check(number >= low && number <= high, "{}: {} is {}, expected {} to {}", file_, key, number, low, high);
    return number;
  }
  bool Flag(const char* key, bool otherwise) const {
    if (!Has(key)) return otherwise;
    Check(object_[key].is_boolean(), "{}: {} is {}, expected true or false", file_, key, object_[key].dump());
    return object_[key].get<bool>();
  }
  std::string Word(const char* key, const std::string& otherwise) const {
    if (!Has(key)) return otherwise;
    Check(object_[key].is_string(), "{}: {} is {}, expected a string", file_, key, object_[key].dump());
    return object_[key].get<std::string>();
  }

 private:
  const Json& object_;
  const std::string& file_;
};

constexpr int64_t kMaxSide = 1 << 22;  // hidden, vocabulary, ...: beyond any model, small enough that products fit

// RoPE settings stand in `rope_scaling` beside `rope_theta`, or, since transformers 5, together in `rope_parameters`.
RopeSpec ParseRope(const Reader& config, const Json& json, const std::string& file, int64_t max_positions) {
  RopeSpec rope;
  rope.theta = config.Number("rope_theta", 1, 1e12, 10000);
  rope.original_max_positions = max_positions;
  const char* key = config.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.Has(key)) return rope;
  Check(json[key].is_object(), "{}: {} is not an object", file, key);
  const Reader scaling(json[key], file);
  rope.theta = scaling.Number("rope_theta", 1, 1e12, rope.theta);
  const std::string kind = scaling.Word("rope_type", scaling.Word("type", "default"));
  if (kind == "default") return rope;
  rope.factor = scaling.Number("factor", 1, 1e6, 1);
  rope.original_max_positions = scaling.Integer("original_max_position_embeddings", 1, int64_t{1} << 31, max_positions);
  if (kind == "linear") {
    rope.kind = RopeKind::kLinear;
  } else if (kind == "llama3") {
    rope.kind = RopeKind::kLlama3;
    rope.low_freq_factor = scaling.Number("low_freq_factor", 1e-6, 1e6, 1);
    rope.high_freq_factor = scaling.Number("high_freq_factor", 1e-6, 1e6, 4);
    Check(rope.high_freq_factor > rope.low_freq_factor, "{}: high_freq_factor is not above low_freq_factor", file);
  } else if (kind == "yarn") {
    rope.kind = RopeKind::kYarn;
    rope.beta_fast = scaling.Number("beta_fast", 1e-6, 1e6, 32);
    rope.beta_slow = scaling.Number("beta_slow", 1e-6, 1e6, 1);
    rope.attention_factor = scaling.Number("attention_factor", 0, 1e3, 0);
    rope.truncate = scaling.Flag("truncate", true);
    Check(!scaling.Has("mscale") && !scaling.Has("mscale_all_dim"), "{}: yarn with mscale is not supported", file);
  } else {
    Fail("{}: rope type \"{}\" is not supported (known: default, linear, llama3, yarn)", file, kind);
  }
  return rope;
}

std::vector<int32_t> TokenList(const Json& value, const std::string& file) {
  std::vector<int32_t> tokens;
  for (const Json& token : value.is_array() ? value : Json::array({value})) {
    Check(token.is_number_integer() && token.get<int64_t>() >= 0 && token.get<int64_t>() < kMaxSide,
          "{}: token id {} is out of range", file, token.dump());
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

void RefuseWindow(const Reader& config, const FamilySpec& spec, int64_t max_positions, const std::string& file) {
  if (!config.Has("sliding_window")) return;
  if (spec.sliding_window_needs_switch && !config.Flag("use_sliding_window", false)) return;
  const int64_t window = config.Integer("sliding_window", 1, INT64_MAX);
  Check(window >= max_positions, "{}: a sliding window of {} below the context of {} is not supported", file, window,
        max_positions);
}

}  // namespace

ModelConfig ParseConfig(std::string_view text, const std::string& name) {
  Json json;
  try {
    json = Json::parse(text.begin(), text.end());
  } catch (const Json::exception& e) {
    Fail("{}: not valid JSON: {}", name, e.what());
  }
  Check(json.is_object(), "{}: not a JSON object", name);
  const Reader config(json, name);
  Check(config.Has("architectures") && json["architectures"].is_array() && json["architectures"].size() == 1 &&
            json["architectures"][0].is_string(),
        "{}: architectures is not a list of one name", name);
  const auto architecture = json["architectures"][0].get<std::string>();
  const FamilySpec* spec = FindFamily(architecture);
  if (spec == nullptr) {
    std::string known;
    for (const FamilySpec& family : Families()) known += std::string(known.empty() ? "" : ", ") + family.architecture;
    Fail("{}: architecture {} is not supported (known: {})", name, architecture, known);
  }
  Check(!config.Has("quantization_config"), "{}: quantised weights are not supported", name);
  const std::string activation = config.Word("hidden_act", "silu");
  Check(activation == "silu", "{}: activation \"{}\" is not supported (silu is)", name, activation);

  ModelConfig out;
  out.family = spec->family;
  out.hidden = config.Integer("hidden_size", 1, kMaxSide);
  out.intermediate = config.Integer("intermediate_size", 1, kMaxSide);
  out.layers = config.Integer("num_hidden_layers", 1, 10000);
  out.heads = config.Integer("num_attention_heads", 1, 65536);
  out.kv_heads = config.Integer("num_key_value_heads", 1, 65536, out.heads);
  Check(out.heads % out.kv_heads == 0, "{}: {} attention heads do not divide over {} key/value heads", name, out.heads,
        out.kv_heads);
  if (!config.Has("head_dim"))
    Check(out.hidden % out.heads == 0, "{}: hidden size {} does not divide over {} heads", name, out.hidden, out.heads);
  out.head_dim = config.Integer("head_dim", 2, 4096, out.hidden / out.heads);
  Check(out.head_dim >= 2 && out.head_dim % 2 == 0, "{}: head_dim {} is not even", name, out.head_dim);
  out.vocab = config.Integer("vocab_size", 1, kMaxSide);
  out.max_positions = config.Integer("max_position_embeddings", 1, int64_t{1} << 31, 2048);
  out.rms_eps = config.Number("rms_norm_eps", 0, 1, 1e-6);
  out.rope = ParseRope(config, json, name, out.max_positions);
  const bool attention_bias = spec->bias_from_config && config.Flag("attention_bias", false);
  out.qkv_bias = spec->qkv_bias || attention_bias;
  out.output_bias = attention_bias;
  out.mlp_bias = spec->bias_from_config && config.Flag("mlp_bias", false);
  out.qk_norm = spec->qk_norm;
  out.tied_head = config.Flag("tie_word_embeddings", false);
  RefuseWindow(config, *spec, out.max_positions, name);
  if (config.Has("bos_token_id")) out.bos_token = TokenList(json["bos_token_id"], name).at(0);
  if (config.Has("eos_token_id")) out.eos_tokens = TokenList(json["eos_token_id"], name);
  return out;
}

ModelConfig LoadConfig(const std::filesystem::path& file) {
  return ParseConfig(ReadFile(file, 1 << 24), file.string());
}

}  // namespace shiftrt
