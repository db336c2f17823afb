#include "models/config.h"

#include <algorithm>
#include <cmath>

#include "models/families.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// One level of a config file, with every value checked as it is read. null counts as absent.
class Reader {
 public:
  Reader(const Json& object, const std::string& file) : object_(object), file_(file) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

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
  double Number(const char* key, double low, double high) const {
    Check(Has(key), "{}: {} is missing", file_, key);
    const Json& value = object_[key];
    Check(value.is_number(), "{}: {} is {}, expected a number", file_, key, value.dump());
    const double number = value.get<double>();
    Check(number >= low && number <= high, "{}: {} is {}, expected {} to {}", file_, key, number, low, high);
    return number;
  }
  double Number(const char* key, double low, double high, double otherwise) const {
    return Has(key) ? Number(key, low, high) : otherwise;
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
constexpr int64_t kMaxPositions = int64_t{1} << 31;

// The object that holds the RoPE settings: `rope_scaling` or, since transformers 5, `rope_parameters`. Where both are
// there the former wins, unless it is empty, as in transformers. Null if there is none.
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

void ParseLlama3(const Reader& settings, const std::string& file, RopeSpec& rope) {
  rope.kind = RopeKind::kLlama3;
  rope.factor = settings.Number("factor", 1, 1e6);
  rope.low_freq_factor = settings.Number("low_freq_factor", 1e-6, 1e6);
  rope.high_freq_factor = settings.Number("high_freq_factor", 1e-6, 1e6);
  Check(rope.high_freq_factor > rope.low_freq_factor, "{}: high_freq_factor {} is not above low_freq_factor {}", file,
        rope.high_freq_factor, rope.low_freq_factor);
}

void ParseYarn(const Reader& settings, int64_t max_positions, RopeSpec& rope) {
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
  const Reader config(json, file);
  const Json* found = FindRopeSettings(json, file);
  const Json none = Json::object();
  const Reader settings(found != nullptr ? *found : none, file);

  RopeSpec rope;
  // A base near 1 has no logarithm to divide by.
  rope.theta = settings.Number("rope_theta", 2, 1e12, config.Number("rope_theta", 2, 1e12, 10000));
  const double share = settings.Number("partial_rotary_factor", 0, 1, config.Number("partial_rotary_factor", 0, 1, 1));
  Check(share == 1, "{}: partial_rotary_factor {} is not supported", file, share);
  // A value beside the settings goes before one among them, as in transformers.
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

// One id or a list of them.
std::vector<int32_t> TokenList(const Json& json, const char* key, const std::string& file) {
  std::vector<int32_t> tokens;
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) return tokens;
  for (const Json& token : value->is_array() ? *value : Json::array({*value})) {
    const bool valid = token.is_number_unsigned() && token.get<uint64_t>() < kMaxSide;
    Check(valid, "{}: {}: {} is not a token id", file, key, token.dump());
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

// Whether a switched window reaches any layer: `layer_types` says so for each, or all from max_window_layers on have
// it.
bool AnyLayerSlides(const Reader& config, const Json& json, int64_t layers, const std::string& file) {
  if (!config.Has("layer_types")) {
    return config.Flag("use_sliding_window", false) && config.Integer("max_window_layers", 0, kMaxSide, 28) < layers;
  }
  const Json& types = json["layer_types"];
  Check(types.is_array(), "{}: layer_types is not a list", file);
  bool any = false;
  for (const Json& type : types) {
    Check(type == "full_attention" || type == "sliding_attention", "{}: layer type {} is not supported", file,
          type.dump());
    any = any || type == "sliding_attention";
  }
  return any;
}

void RefuseWindow(const Json& json, WindowRule rule, const ModelConfig& model, const std::string& file) {
  const Reader config(json, file);
  if (rule == WindowRule::kIgnored) return;
  if (rule == WindowRule::kSwitched && !AnyLayerSlides(config, json, model.layers, file)) return;
  if (json.contains("sliding_window") && json["sliding_window"].is_null()) return;
  const int64_t window = config.Integer("sliding_window", 1, INT64_MAX, 4096);
  Check(window >= model.max_positions, "{}: a sliding window of {} below max_position_embeddings {} is not supported",
        file, window, model.max_positions);
}

const FamilySpec& ParseArchitecture(const Json& json, const std::string& file) {
  const auto names = json.find("architectures");
  Check(names != json.end() && names->is_array() && names->size() == 1 && names->front().is_string(),
        "{}: architectures is not a list of one name", file);
  const auto& name = names->front().get_ref<const std::string&>();
  if (const FamilySpec* spec = FindFamily(name)) return *spec;
  std::vector<std::string_view> known;
  for (const FamilySpec& family : Families()) known.push_back(family.architecture);
  Fail("{}: architecture {} is not supported (known: {})", file, name, fmt::join(known, ", "));
}

void ParseShape(const Reader& config, const std::string& file, ModelConfig& out) {
  out.hidden = config.Integer("hidden_size", 1, kMaxSide);
  out.intermediate = config.Integer("intermediate_size", 1, kMaxSide);
  out.layers = config.Integer("num_hidden_layers", 1, 10000);
  out.heads = config.Integer("num_attention_heads", 1, 65536);
  out.kv_heads = config.Integer("num_key_value_heads", 1, 65536, out.heads);
  out.vocab = config.Integer("vocab_size", 1, kMaxSide);
  out.max_positions = config.Integer("max_position_embeddings", 1, kMaxPositions);
  Check(out.heads % out.kv_heads == 0, "{}: {} attention heads do not divide over {} key/value heads", file, out.heads,
        out.kv_heads);
  Check(config.Has("head_dim") || out.hidden % out.heads == 0, "{}: hidden_size {} does not divide over {} heads", file,
        out.hidden, out.heads);
  out.head_dim = config.Integer("head_dim", 1, 4096, out.hidden / out.heads);
  Check(out.head_dim % 2 == 0 && out.head_dim <= 4096, "{}: head_dim {} is not an even number up to 4096", file,
        out.head_dim);
}

}  // namespace

ModelConfig ParseConfig(std::string_view text, const std::string& name) {
  const Json json = ParseJson(text, name);
  Check(json.is_object(), "{}: not a JSON object", name);
  const Reader config(json, name);
  const FamilySpec& spec = ParseArchitecture(json, name);
  Check(!config.Has("quantization_config"), "{}: quantization_config: quantised weights are not supported", name);
  const std::string activation = config.Word("hidden_act", "silu");
  Check(activation == "silu", "{}: hidden_act \"{}\" is not supported (silu is)", name, activation);

  ModelConfig out;
  out.family = spec.family;
  ParseShape(config, name, out);
  out.rms_eps = config.Number("rms_norm_eps", 0, 1, 1e-6);
  out.rope = ParseRope(json, name, out.max_positions);
  out.output_bias = spec.qkv_bias == BiasRule::kFromConfig && config.Flag("attention_bias", false);
  out.qkv_bias = spec.qkv_bias == BiasRule::kAlways || out.output_bias;
  out.mlp_bias = spec.mlp_bias == BiasRule::kFromConfig && config.Flag("mlp_bias", false);
  out.qk_norm = spec.qk_norm;
  out.tied_head = config.Flag("tie_word_embeddings", false);
  RefuseWindow(json, spec.window, out, name);
  out.bos_token = static_cast<int32_t>(config.Integer("bos_token_id", 0, kMaxSide - 1, -1));
  out.eos_tokens = TokenList(json, "eos_token_id", name);
  return out;
}

ModelConfig LoadConfig(const std::filesystem::path& file) {
  return ParseConfig(ReadFile(file, kMaxConfigBytes), file.string());
}

}  // namespace shiftrt
