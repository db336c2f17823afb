// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "models/config_keys.h"
#include "models/config_reader.h"
#include "models/families.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/parse.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSide = 1 << 22;  // hidden, vocabulary, ...: beyond any model, small enough that products fit
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";  // types of layers

// The RoPE settings for layers of a type: `rope_scaling` or, since transformers 5, `rope_parameters`. If both are
// there, the former is used unless it is empty, as in transformers. An empty object if there is none. In families whose
// sliding layers have a RoPE of their own, `rope_parameters` may hold one object for each type of layer, and settings
// without types are those of the other layers.
const Json& FindRopeSettings(const ConfigReader& config, const Family& family, const char* layer_type) {
  static const Json none = Json::object();
  config.Has("rope_parameters");  // read even where rope_scaling takes precedence
  const bool sliding = std::string_view(layer_type) == kSliding;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.Has(key)) continue;
    const Json& found = config[key];
    Check(found.is_object(), "{}: {} is not an object", config.file(), key);
    const bool by_type = std::any_of(found.begin(), found.end(), [](const Json& value) { return value.is_object(); });
    for (const auto& [name, value] : found.items())
      Check(!by_type || (family.rope.by_layer_type && value.is_object() && (name == kFull || name == kSliding)),
            "{}: {} of its own for layers of type {} is not supported", config.file(), key, Printable(name));
    if (by_type) return found.contains(layer_type) ? found[layer_type] : none;
    if (!found.empty()) return sliding ? none : found;
  }
  return none;
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

// One divisor for each pair of elements that is rotated.
std::vector<double> ParseFactors(const ConfigReader& settings, const char* key, int64_t pairs) {
  Check(settings.Has(key) && settings[key].is_array() && std::ssize(settings[key]) == pairs,
        "{}: {} is not a list of {} numbers, one for each pair of elements that is rotated", settings.file(), key,
        pairs);
  std::vector<double> factors;
  for (const Json& value : settings[key]) {
    Check(value.is_number() && value.get<double>() > 0 && value.get<double>() < 1e6,
          "{}: {} has {}, expected a number above 0", settings.file(), key, Shown(value));
    factors.push_back(value.get<double>());
  }
  return factors;
}

// Phi-3, the only family with longrope, has this default in transformers.
constexpr int64_t kLongRopeOriginal = 4096;

void ParseLongRope(const ConfigReader& settings, int64_t max_positions, int64_t head_dim, RopeSpec& rope) {
  rope.kind = RopeKind::kLongRope;
  const auto original = static_cast<double>(rope.original_max_positions);
  rope.factor = settings.Number("factor", 1e-6, 1e6, static_cast<double>(max_positions) / original);
  Check(rope.original_max_positions > 1, "{}: original_max_position_embeddings is 1", settings.file());
  const double inferred = rope.factor > 1 ? std::sqrt(1 + std::log(rope.factor) / std::log(original)) : 1;
  rope.attention_factor = settings.Number("attention_factor", 1e-6, 1e3, inferred);
  const int64_t pairs = rope.RotaryDim(head_dim) / 2;
  rope.short_factors = ParseFactors(settings, "short_factor", pairs);
  rope.long_factors = ParseFactors(settings, "long_factor", pairs);
}

RopeSpec ParseRope(const ConfigReader& config, const Family& family, const ModelConfig& model, const char* layer_type) {
  const std::string& file = config.file();
  const FamilyRope& of = family.rope;
  const ConfigReader settings(FindRopeSettings(config, family, layer_type), file);

  RopeSpec rope;
  // A base near 1 would make the divisor log(base) vanish.
  const double theta = config.Number("rope_theta", 2, 1e12, 10000);
  const bool local = of.local_theta != nullptr && std::string_view(layer_type) == kSliding;
  rope.theta = settings.Number("rope_theta", 2, 1e12, local ? config.Number(of.local_theta, 2, 1e12) : theta);
  rope.interleaved = of.interleaved;
  if (of.partial > 0)
    rope.partial =
        settings.Number("partial_rotary_factor", 0, 1, config.Number("partial_rotary_factor", 0, 1, of.partial));
  const int64_t rotated = rope.RotaryDim(model.head_dim);
  Check(rotated >= 2 && rotated % 2 == 0, "{}: partial_rotary_factor {} of head_dim {} is {}, expected an even number",
        file, rope.partial, model.head_dim, rotated);
  std::string kind = settings.Word("rope_type", settings.Word("type", "default"));
  if (of.longrope && (kind == "su" || kind == "yarn")) kind = "longrope";
  // A value next to the settings takes precedence over one among them, as in transformers.
  const int64_t original = kind == "longrope" ? kLongRopeOriginal : model.max_positions;
  rope.original_max_positions =
      config.Integer("original_max_position_embeddings", 1, kMaxPositions,
                     settings.Integer("original_max_position_embeddings", 1, kMaxPositions, original));
  if (of.query_beta) rope.query_beta = settings.Number("llama_4_scaling_beta", 0, 1e3, 0);
  if (kind == "linear") {
    rope.kind = RopeKind::kLinear;
    rope.factor = settings.Number("factor", 1, 1e6);
  } else if (kind == "llama3") {
    ParseLlama3(settings, file, rope);
  } else if (kind == "yarn") {
    ParseYarn(settings, model.max_positions, rope);
  } else if (kind == "longrope" && of.longrope) {
    ParseLongRope(settings, model.max_positions, model.head_dim, rope);
  } else if (kind == "dynamic") {
    // The frequencies change only beyond max_position_embeddings, and no longer sequence is run.
    settings.Number("factor", 1, 1e6);
    if (const double alpha = of.ntk_alpha ? settings.Number("alpha", 0, 1e9, 0) : 0; alpha > 0 && rotated > 2)
      rope.theta *= std::pow(alpha, static_cast<double>(rotated) / static_cast<double>(rotated - 2));
  } else {
    Check(kind == "default", "{}: rope type \"{}\" is not supported (known: default, dynamic, linear, llama3, yarn{})",
          file, Printable(kind), of.longrope ? ", longrope" : "");
  }
  RefuseUnknownKeys(settings, family);
  return rope;
}

// Reads one token id or a list of them.
std::vector<int32_t> TokenList(const ConfigReader& config, const char* key) {
  std::vector<int32_t> tokens;
  if (!config.Has(key)) return tokens;
  const Json& value = config[key];
  for (const Json& token : value.is_array() ? value : Json::array({value})) {
    // A value that the program made, not the parser, may be signed.
    const bool valid = token.is_number_integer() && token >= 0 && token < kMaxSide;
    Check(valid, "{}: {}: {} is not a token id", config.file(), key, Shown(token));
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

// The positions that a model with YaRN has if its max_position_embeddings was left at those of the training, as Qwen
// 2.5's model card says: as many times more as the factor says.
int64_t PositionsOf(const ConfigReader& config, const Family& family, const ModelConfig& model) {
  const ConfigReader settings(FindRopeSettings(config, family, kFull), config.file());
  const RopeSpec& rope = model.rope;
  if (rope.kind != RopeKind::kYarn || !settings.Has("original_max_position_embeddings") ||
      rope.original_max_positions != model.max_positions)
    return model.max_positions;
  return std::min<int64_t>(std::llround(rope.factor * static_cast<double>(rope.original_max_positions)), kMaxPositions);
}

// The family whose checkpoints have the `model_type` of this configuration; null for none.
const Family* FamilyOfType(const Json& json) {
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) return nullptr;
  const auto& families = Families();
  const auto at = std::ranges::find(families, std::string_view(type->get_ref<const std::string&>()), &Family::Type);
  return at == families.end() ? nullptr : &*at;
}

// The class of the model: the one name in `architectures`, or the class of its `model_type` where no name is there, as
// in transformers. The base class, from which a model without its head is saved, and LLaMAForCausalLM, as the first
// conversions spelt it, stand for the class with the head.
std::string ArchitectureOf(const Json& json, const std::string& file) {
  const auto names = json.find("architectures");
  if (names == json.end() || names->is_null()) {
    const Family* const family = FamilyOfType(json);
    Check(
        family != nullptr,
        "{}: architectures is missing, and model_type is {}, of which no family is known; name the class of the model, "
        "such as \"architectures\": [\"LlamaForCausalLM\"]",
        file, Shown(json.value("model_type", Json())));
    return family->architecture;
  }
  Check(names->is_array() && names->size() == 1 && names->front().is_string(),
        "{}: architectures is not a list of one name", file);
  const auto& name = names->front().get_ref<const std::string&>();
  for (const Family& family : Families()) {
    const std::string whole = AsciiLower(family.architecture), stem = whole.substr(0, whole.find("for"));
    if (AsciiLower(name) == whole || AsciiLower(name) == stem + "model") return family.architecture;
  }
  return name;
}

void ParseShape(const ConfigReader& config, const Family& family, ModelConfig& out) {
  const std::string& file = config.file();
  out.hidden = config.Integer("hidden_size", 1, kMaxSide);
  out.intermediate = config.Integer(family.intermediate, 1, kMaxSide);
  if (family.units != nullptr) out.intermediate = family.units(config, out.intermediate);
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

namespace {

// `json` with the settings under their first names, and the family's defaults for those that it lacks.
Json WithDefaults(const Family& family, Json json) {
  for (const auto& [second, first] : family.aliases) {
    if (!json.contains(second)) continue;
    json[first] = json[second];
    json.erase(second);
  }
  const Json defaults = Json::parse(family.defaults);
  for (const auto& [key, value] : defaults.items())
    if (!json.contains(key)) json[key] = value;
  return json;
}

ModelConfig ReadAs(const Family& family, const ConfigReader& config) {
  ModelConfig out;
  if (config.Has("quantization_config"))
    out.quantisation = ParseQuantisation(config["quantization_config"], config.file() + ": quantization_config");
  out.family = family.name;
  ParseShape(config, family, out);
  out.rms_eps = config.Number(family.eps, 0, 1, 1e-6);
  out.rope = ParseRope(config, family, out, kFull);
  out.max_positions = PositionsOf(config, family, out);
  if (family.rope.by_layer_type) out.second_rope = ParseRope(config, family, out, kSliding);
  out.block = family.block(config, out);
  out.tied_head = config.Flag("tie_word_embeddings", false);
  out.bos_token = static_cast<int32_t>(config.Integer("bos_token_id", 0, kMaxSide - 1, -1));
  out.eos_tokens = TokenList(config, "eos_token_id");
  return out;
}

// Why a config.json cannot be read as one of this family; empty if it could.
std::string WhyNotAs(const Family& family, const Json& json, const std::string& name) {
  const Json whole = WithDefaults(family, json);
  const ConfigReader config(whole, name);
  try {
    ReadAs(family, config);
  } catch (const Error& error) {
    const std::string what = error.what();
    return what.substr(what.starts_with(name) ? name.size() + 2 : 0);
  }
  const std::vector<std::string> unknown = UnknownKeys(config, family);
  if (unknown.empty()) return "";
  return fmt::format("this file has {}, which {} does not read", Printable(fmt::format("{}", fmt::join(unknown, ", "))),
                     family.architecture);
}

// The number of letters with which both names begin.
int64_t CommonPrefix(std::string_view a, std::string_view b) {
  int64_t count = 0;
  while (count < std::ssize(a) && count < std::ssize(b) && a[count] == b[count]) ++count;
  return count;
}

// The name without "ForCausalLM" and the like.
std::string_view Stem(std::string_view architecture) { return architecture.substr(0, architecture.find("For")); }

// No other family computes something like the blocks of Gemma 4.
void RefuseGemma4(std::string_view architecture, const std::string& name) {
  Check(!architecture.starts_with("Gemma4"),
        "{}: architecture {} is not supported: blocks of Gemma 4 have heads of two sizes, take keys and values and "
        "embeddings that are computed outside them, and multiply the stream by a number of the block",
        name, Printable(architecture));
}

// Says which family is nearest to one that is not known: one that would read the file, if there is any, and of those
// the one with the most similar name.
[[noreturn]] void FailOfArchitecture(const Json& json, const std::string& architecture, const std::string& name) {
  RefuseGemma4(architecture, name);
  std::vector<std::string_view> known;
  const Family* nearest = nullptr;
  std::string difference;
  std::pair<bool, int64_t> best;
  for (const Family& family : Families()) {
    known.emplace_back(family.architecture);
    std::string why = WhyNotAs(family, json, name);
    const std::pair<bool, int64_t> rank(why.empty(), CommonPrefix(Stem(architecture), Stem(family.architecture)));
    if (nearest != nullptr && rank <= best) continue;
    nearest = &family;
    best = rank;
    difference = std::move(why);
  }
  if (difference.empty()) difference = "it reads all settings of this file, but the blocks may compute something else";
  Fail("{}: architecture {} is not supported. The nearest that is supported is {}: {} (known: {})", name,
       Printable(architecture), nearest->architecture, difference, fmt::join(known, ", "));
}

// The architecture and the model type of the text model in a model of text and images; null for another model.
const std::pair<std::string, std::string>* TextModelOf(const std::string& architecture, const std::string& text_type) {
  struct Row {
    const char *architecture, *text_type;
    std::pair<std::string, std::string> text;
  };
  static const Row rows[] = {
      {"Gemma3ForConditionalGeneration", "gemma3_text", {"Gemma3ForCausalLM", "gemma3_text"}},
      {"Qwen3_5ForConditionalGeneration", "qwen3_5_text", {"Qwen3_5ForCausalLM", "qwen3_5_text"}},
      {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"}},
      {"Mistral3ForConditionalGeneration", "mistral", {"MistralForCausalLM", "mistral"}},
      {"Mistral3ForConditionalGeneration", "ministral3", {"Ministral3ForCausalLM", "ministral3"}},
  };
  for (const Row& row : rows)
    if (architecture == row.architecture && text_type == row.text_type) return &row.text;
  return nullptr;
}

}  // namespace

ModelConfig ParseConfig(std::string_view text, const std::string& name) {
  return ConfigFromJson(ParseJson(text, name), name);
}

ModelConfig ConfigFromJson(const Json& whole, const std::string& name) {
  Check(whole.is_object(), "{}: not a JSON object", name);
  const Json json = TextConfig(whole, name);
  const std::string architecture = ArchitectureOf(json, name);
  const Family* const family = FindFamily(architecture);
  if (family == nullptr) FailOfArchitecture(json, architecture, name);
  const Json complete = WithDefaults(*family, json);
  const ConfigReader config(complete, name);
  ModelConfig out = ReadAs(*family, config);
  RefuseUnknownKeys(config, *family);
  return out;
}

Json TextConfig(const Json& json, const std::string& name) {
  const auto text = json.find("text_config");
  if (text == json.end() || !text->is_object() || !json.contains("architectures")) {
    Json named = json;
    named["architectures"] = Json::array({ArchitectureOf(json, name)});
    return named;
  }
  const std::string architecture = ArchitectureOf(json, name);
  RefuseGemma4(architecture, name);
  const Json type = text->value("model_type", Json());
  const auto* const model = TextModelOf(architecture, type.is_string() ? type.get<std::string>() : "");
  Check(model != nullptr, "{}: the text model of {} (text_config.model_type {}) is not supported", name, architecture,
        Shown(type));
  Json alone = *text;
  alone["architectures"] = Json::array({model->first});
  alone["model_type"] = model->second;
  // These stand next to the text model's settings, or among them. The head is that of the whole model, as in
  // transformers 5.
  if (json.contains("tie_word_embeddings")) alone["tie_word_embeddings"] = json["tie_word_embeddings"];
  for (const char* key : {"dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config",
                          "transformers_version", "_name_or_path"})
    if (json.contains(key) && !alone.contains(key)) alone[key] = json[key];
  return alone;
}

ModelConfig LoadConfig(const std::filesystem::path& file) {
  ModelConfig config = ParseConfig(ReadFile(file, kMaxConfigBytes), file.string());
  const auto path = file.parent_path() / "generation_config.json";
  if (!Exists(path)) return config;
  const std::string path_name = path.string();
  const Json generation = ParseJson(ReadFile(path, kMaxConfigBytes), path_name);
  Check(generation.is_object(), "{}: not a JSON object", path.string());
  std::set<int32_t> known(config.eos_tokens.begin(), config.eos_tokens.end());
  for (const int32_t token : TokenList(ConfigReader(generation, path_name), "eos_token_id"))
    if (known.insert(token).second) config.eos_tokens.push_back(token);
  return config;
}

}  // namespace shiftrt
