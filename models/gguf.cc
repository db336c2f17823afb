// SPDX-License-Identifier: Apache-2.0
#include "models/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <set>

#include "models/block_tensors.h"
#include "models/checkpoint.h"
#include "models/gguf_keys.h"
#include "models/gguf_mixers.h"
#include "runtime/check.h"
#include "runtime/json.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;
using B = BlockWeights;

constexpr int64_t kMostLayers = 10000;  // as in ParseConfig, before which lists by layer are made

const GgufArchitecture& ArchitectureOf(const GgufMetadata& metadata) {
  const std::string_view name = metadata.Text("general.architecture");
  const GgufArchitecture* const found = FindGgufArchitecture(name);
  if (found == nullptr)
    Fail("{}: general.architecture {} is not supported (known: {})", metadata.name(), Printable(name),
         KnownGgufArchitectures());
  return *found;
}

// A tensor of factors; empty if the file lacks it.
std::vector<float> ReadFactors(const GgufContents& file, const char* name) {
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end()) return {};
  const GgufTensor& tensor = found->second;
  Check(tensor.type->code == static_cast<uint32_t>(BlockType::kF32), "{}: tensor {} is of type {}, expected F32",
        file.metadata.name(), name, tensor.type->name);
  std::vector<float> factors(static_cast<size_t>(tensor.bytes) / sizeof(float));
  if (!factors.empty()) std::memcpy(factors.data(), tensor.data, static_cast<size_t>(tensor.bytes));
  return factors;
}

bool AreFactorsOf(const ModelConfig& model, const std::vector<float>& plain, const std::vector<float>& factors) {
  const std::vector<float> scaled = MakeRopeFrequencies(model).inverse;
  for (size_t i = 0; i < factors.size(); ++i)
    if (!(std::abs(factors[i] * scaled[i] - plain[i]) <= 1e-5f * plain[i])) return false;
  return true;
}

// Completes Llama 3's settings, given the largest factor, from the frequencies between those that are kept and those
// that are slowed. The share s of the unscaled frequency is linear in the inverse wavelength: s (high - low) = original
// / wavelength - low. Only ratios of the three count, so low is set to 1. False if there is no such frequency.
bool FitLlama3(const std::vector<float>& plain, const std::vector<float>& factors, RopeSpec& rope) {
  double xx = 0, xs = 0, ss = 0, x1 = 0, s1 = 0;
  int between = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double kept = (1 / static_cast<double>(factors[i]) - 1 / rope.factor) / (1 - 1 / rope.factor);
    if (kept < 1e-4 || kept > 1 - 1e-4) continue;
    const double x = static_cast<double>(plain[i]) / (2 * std::numbers::pi);  // x original - s (high - 1) = 1
    xx += x * x;
    xs += x * kept;
    ss += kept * kept;
    x1 += x;
    s1 += kept;
    ++between;
  }
  if (between == 0) return false;
  double original = (x1 + 3 * xs) / xx, high = 4;  // the values of all models whose file does not say
  if (between > 1) {
    const double determinant = xx * ss - xs * xs;
    original = (x1 * ss - s1 * xs) / determinant;
    high = 1 + (x1 * xs - s1 * xx) / determinant;
  }
  if (!(original >= 1 && original < 1e9 && high > 1 && high < 1e6)) return false;
  rope.original_max_positions = std::llround(original);
  const double quarter = std::round(high * 4) / 4;  // settings are round numbers
  rope.high_freq_factor = std::abs(high - quarter) < 1e-2 ? quarter : high;
  return true;
}

Json Llama3Scaling(const std::string& file, const std::vector<float>& factors, double theta, int64_t head_dim) {
  Check(std::ssize(factors) == head_dim / 2, "{}: tensor {} has {} elements, expected {}", file, kGgufRopeFactors,
        factors.size(), head_dim / 2);
  const std::optional<RopeSpec> rope = FindLlama3Scaling(factors, theta, head_dim);
  Check(rope.has_value(),
        "{}: tensor {}: no settings of Llama 3's RoPE scaling have these factors, and no other kind is "
        "supported",
        file, kGgufRopeFactors);
  return {{"rope_type", "llama3"},
          {"factor", rope->factor},
          {"low_freq_factor", rope->low_freq_factor},
          {"high_freq_factor", rope->high_freq_factor},
          {"original_max_position_embeddings", rope->original_max_positions}};
}

// `rope_scaling` of config.json; null for none.
Json RopeScaling(const GgufContents& file, const GgufArchitecture& architecture, GgufKeys& keys, double theta,
                 int64_t head_dim) {
  const std::string& name = file.metadata.name();
  const std::string_view stated = keys.Text("rope.scaling.type", ""), type = stated.empty() ? "none" : stated;
  const double factor = keys.Number("rope.scaling.factor", keys.Number("rope.scale_linear", 1));
  const int64_t original = keys.Integer("rope.scaling.original_context_length", 0);
  keys.Ignore("rope.scaling.finetuned");
  keys.Only("rope.scaling.yarn_ext_factor", 1);
  keys.Only("rope.scaling.yarn_attn_factor", 1);
  const double fast = keys.Number("rope.scaling.yarn_beta_fast", 32);
  const double slow = keys.Number("rope.scaling.yarn_beta_slow", 1);
  const std::vector<float> factors = ReadFactors(file, kGgufRopeFactors);
  const std::vector<float> shorts = ReadFactors(file, kGgufShortFactors), longs = ReadFactors(file, kGgufLongFactors);
  Check(architecture.rope_factors || factors.empty(), "{}: architecture {} does not read tensor {}", name,
        architecture.name, kGgufRopeFactors);
  Check(architecture.longrope || (shorts.empty() && longs.empty()),
        "{}: architecture {} does not read tensors {} and {}", name, architecture.name, kGgufShortFactors,
        kGgufLongFactors);
  if (!longs.empty()) {
    Check(type == "none" || type == "longrope", "{}: tensor {} with rope.scaling.type {} is not supported", name,
          kGgufLongFactors, Printable(type));
    Check(original > 0, "{}: {} is missing", name, keys.Full("rope.scaling.original_context_length"));
    return {{"rope_type", "longrope"},
            {"short_factor", shorts},
            {"long_factor", longs},
            {"original_max_position_embeddings", original},
            {"attention_factor", keys.Number("rope.scaling.attn_factor", 1)}};
  }
  keys.Only("rope.scaling.attn_factor", 1);
  if (!factors.empty()) {
    Check(type == "none", "{}: tensor {} with rope.scaling.type {} is not supported", name, kGgufRopeFactors,
          Printable(type));
    return Llama3Scaling(name, factors, theta, head_dim);
  }
  Check(type == "linear" || type == "none" || (type == "yarn" && architecture.yarn), "{}: {} is {}, expected none{} {}",
        name, keys.Full("rope.scaling.type"), Printable(type), architecture.yarn ? ", linear or" : " or",
        architecture.yarn ? "yarn" : "linear");
  Json scaling;
  if (type == "yarn") {
    Check(original > 0, "{}: {} is missing", name, keys.Full("rope.scaling.original_context_length"));
    scaling = {{"rope_type", "yarn"},
               {"factor", factor},
               {"original_max_position_embeddings", original},
               {"beta_fast", fast},
               {"beta_slow", slow}};
    if (architecture.exact_yarn) scaling["truncate"] = false;
  } else if (factor != 1 && stated != "none") {  // old files have a factor but no type
    scaling = {{"rope_type", "linear"}, {"factor", factor}};
  }
  if (!architecture.query_scale) {
    keys.Only("rope.scaling.yarn_log_multiplier", 0);
    return scaling;
  }
  if (scaling.is_null()) scaling = {{"rope_type", "default"}};
  if (const double m = keys.Number("rope.scaling.yarn_log_multiplier", 0); m != 0 && type == "yarn") {
    scaling["mscale"] = 1;
    scaling["mscale_all_dim"] = m;
  }
  if (const double beta = keys.Number("attention.temperature_scale", 0); beta != 0) {
    Check(original > 0, "{}: {} is missing", name, keys.Full("rope.scaling.original_context_length"));
    scaling["original_max_position_embeddings"] = original;
    scaling["llama_4_scaling_beta"] = beta;
  }
  return scaling;
}

// For each layer, true if it attends to a window of `sliding_window` keys. Empty if no layer does.
std::vector<bool> SlidingLayers(const GgufArchitecture& architecture, GgufKeys& keys, int64_t layers) {
  constexpr const char *kWindow = "attention.sliding_window", *kPattern = "attention.sliding_window_pattern";
  if (architecture.full_every == 0) return {};
  const bool windows = architecture.windows_at == 0 || layers == architecture.windows_at;
  const bool reads = windows && (architecture.always_windows || keys.Integer(kWindow, 0) > 0);
  keys.Ignore(kWindow);
  keys.Ignore(kPattern);
  if (!reads) return {};
  if (keys.HasList(kPattern)) {
    std::vector<bool> slides = keys.Flags(kPattern);
    Check(std::ssize(slides) >= layers, "{}: {} has {} entries for {} layers", keys.file(), keys.Full(kPattern),
          slides.size(), layers);
    slides.resize(layers);
    return slides;
  }
  const int64_t period = keys.Integer(kPattern, architecture.full_every);
  std::vector<bool> slides;
  for (int64_t layer = 0; layer < layers; ++layer) slides.push_back(period == 0 || (layer + 1) % period != 0);
  return slides;
}

// The settings of layers with and without a window: `layer_types`, and a rotary embedding for each type.
void AddWindows(const GgufArchitecture& architecture, const Family& family, GgufKeys& keys,
                const std::vector<bool>& slides, Json& config) {
  constexpr const char* kWindow = "attention.sliding_window";
  if (architecture.longrope) {
    const int64_t window = keys.Integer(kWindow, 0);
    config["sliding_window"] = window > 0 ? Json(window) : Json();
  }
  if (architecture.full_every == 0) return;
  Json types = Json::array();
  for (int64_t layer = 0; layer < config["num_hidden_layers"].get<int64_t>(); ++layer)
    types.push_back(!slides.empty() && slides[layer] ? "sliding_attention" : "full_attention");
  config["layer_types"] = std::move(types);
  if (slides.empty()) {
    if (architecture.windows_at > 0) config["sliding_window"] = nullptr;
  } else if (keys.Has(kWindow)) {
    config["sliding_window"] = keys.Integer(kWindow);
  }
  if (!family.rope.by_layer_type) return;
  const double theta = config["rope_theta"].get<double>();
  Json full = config.value("rope_scaling", Json::object());
  full["rope_theta"] = theta;
  config.erase("rope_scaling");
  const double fallback = architecture.sliding_theta > 0 ? architecture.sliding_theta : theta;
  config["rope_parameters"] = {
      {"full_attention", std::move(full)},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", keys.Number("rope.freq_base_swa", fallback)}}}};
  if (!config["rope_parameters"]["full_attention"].contains("rope_type"))
    config["rope_parameters"]["full_attention"]["rope_type"] = "default";
}

// The name of the type that a tensor gets in memory unless the caller asks for another.
const char* TypeInMemory(const BlockTraits& stored) {
  return Name(PlainType(static_cast<BlockType>(stored.code)).value_or(DType::kBFloat16));
}

void AddTokens(const GgufMetadata& metadata, Json& config) {
  if (const int64_t bos = metadata.Integer("tokenizer.ggml.bos_token_id", 0, kMaxGgufNumber, -1); bos >= 0)
    config["bos_token_id"] = bos;
  const std::vector<int64_t> ends = GgufEndTokens(metadata);
  if (ends.size() == 1) config["eos_token_id"] = ends.front();
  if (ends.size() > 1) config["eos_token_id"] = ends;
}

// The settings of mixtures of experts.
void AddExperts(const GgufMixture& mixture, GgufKeys& keys, int64_t experts, Json& config) {
  constexpr int64_t kSoftmax = 1;
  if (experts == 0) {
    keys.OnlyInteger("expert_used_count", 0, "there are no experts");
    keys.Ignore("expert_feed_forward_length");
    return;
  }
  const int64_t active = keys.Integer("expert_used_count"),
                intermediate = config[FindFamily(mixture.family)->intermediate].get<int64_t>();
  Check(active <= experts, "{}: {} is {}, expected 1 to {}, the number of experts", keys.file(),
        keys.Full("expert_used_count"), active, experts);
  keys.OnlyInteger("expert_gating_func", kSoftmax, "the weights of experts are those of a softmax");
  keys.OnlyInteger("expert_shared_count", 0, "experts that all tokens share are not supported");
  keys.OnlyInteger("expert_group_count", 0, "groups of experts are not supported");
  keys.Ignore("expert_group_used_count");
  const double scale = keys.Number("expert_weights_scale", 0);
  Check(scale == 0 || scale == 1, "{}: {} is {}; only 1 is supported", keys.file(), keys.Full("expert_weights_scale"),
        scale);
  config[mixture.experts] = experts;
  config["num_experts_per_tok"] = active;
  if (mixture.normalise != nullptr) config[mixture.normalise] = mixture.normalised;
  if (mixture.units != nullptr) {  // without the key, llama.cpp divides the units of an MLP among the active experts
    config[mixture.units] = keys.Integer("expert_feed_forward_length", intermediate / active);
  } else {
    keys.OnlyInteger("expert_feed_forward_length", intermediate, "the feed_forward_length");
  }
  if (mixture.shared != nullptr)
    config[mixture.shared] = keys.Integer("expert_shared_feed_forward_length", intermediate);
}

}  // namespace

Json GgufConfig(const GgufContents& file) {
  const GgufMetadata& metadata = file.metadata;
  const std::string& name = metadata.name();
  const GgufArchitecture& architecture = ArchitectureOf(metadata);
  GgufKeys keys(metadata, architecture.name);
  const auto embedding = file.tensors.find(kGgufEmbedding);
  Check(embedding != file.tensors.end(), "{}: tensor {} is missing", name, kGgufEmbedding);

  const int64_t blocks = keys.Integer("block_count"),
                of_prediction = architecture.gated_delta ? keys.Integer(kGgufPredictionLayers, 0) : 0,
                file_layers = blocks - of_prediction;
  Check(file_layers > 0, "{}: {} is {}, expected less than {}, the number of blocks", name,
        keys.Full(kGgufPredictionLayers), of_prediction, blocks);
  Check(file_layers <= kMostLayers, "{}: {} is {}, expected at most {}", name, keys.Full("block_count"), file_layers,
        kMostLayers);
  const GgufLayers by_layer = architecture.by_layer ? ReadGgufLayers(file, architecture) : GgufLayers();
  const int64_t layers = architecture.by_layer ? by_layer.blocks() : file_layers;
  Check(architecture.most_layers == 0 || layers <= architecture.most_layers,
        "{}: {} is {}; with more than {} layers, llama.cpp expects norms of heads", name, keys.Full("block_count"),
        layers, architecture.most_layers);
  const std::vector<bool> slides = SlidingLayers(architecture, keys, layers);
  const bool rotates = !architecture.rope_switch || keys.Flag("rope.scaling.finetuned", true);
  const bool windowed = !slides.empty() && architecture.windowed != nullptr;
  const int64_t experts = keys.Integer("expert_count", 0);
  Check(experts == 0 || architecture.mixture.family != nullptr,
        "{}: {} is {}: architecture {} is not supported with experts", name, keys.Full("expert_count"), experts,
        architecture.name);
  const char* const class_name = experts > 0             ? architecture.mixture.family
                                 : windowed              ? architecture.windowed
                                 : architecture.by_layer ? by_layer.Family(file)
                                 : rotates               ? architecture.families.front()
                                                         : architecture.families.back();
  const Family& family = *FindFamily(class_name);

  const std::optional<int64_t> listed = ReadGgufKvHeads(architecture, keys);
  const auto size = [&](const char* key, int64_t of_layers, std::optional<int64_t> fallback = std::nullopt) {
    if (!architecture.by_layer) return fallback ? keys.Integer(key, *fallback) : keys.Integer(key);
    keys.Ignore(key);
    return of_layers;
  };
  const int64_t hidden = keys.Integer("embedding_length"), heads = size("attention.head_count", by_layer.heads);
  const int64_t head_dim = keys.Integer("attention.key_length", hidden / heads);
  Check(head_dim > 0 && head_dim <= kMaxGgufNumber / heads, "{}: {} is {}", name, keys.Full("attention.key_length"),
        head_dim);
  Check(
      !architecture.square || head_dim * heads == hidden,
      "{}: heads have {} dimensions, expected {}: with architecture {}, all heads together have the size of the stream",
      name, head_dim, hidden / heads, architecture.name);
  const std::string why = fmt::format("heads have {} dimensions", head_dim);
  keys.OnlyInteger("attention.value_length", head_dim, why.c_str());
  if (!architecture.partial) keys.OnlyInteger("rope.dimension_count", head_dim, why.c_str());
  keys.OnlyInteger("vocab_size", embedding->second.shape.front(), "the rows of token_embd.weight");
  keys.Ignore("tensor_data_layout");
  const bool own_head = file.tensors.contains(kGgufHead);
  Check(architecture.head == GgufArchitecture::Head::kAny ||
            own_head == (architecture.head == GgufArchitecture::Head::kOwn),
        "{}: tensor {} is {}, and architecture {} expects the contrary", name, kGgufHead,
        own_head ? "there" : "missing", architecture.name);
  const double theta = keys.Number("rope.freq_base", 10000);
  const char* const eps = architecture.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  // A model whose layers all have experts may lack the width of an MLP.
  const int64_t feed_forward = size("feed_forward_length", by_layer.intermediate,
                                    architecture.mixture.shared != nullptr ? std::optional<int64_t>(0) : std::nullopt);
  Json config = {{"architectures", Json::array({class_name})},
                 {"model_type", family.Type()},
                 {"hidden_act", architecture.activation},
                 {"hidden_size", hidden},
                 {family.intermediate, feed_forward},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", listed ? *listed : size("attention.head_count_kv", by_layer.kv_heads, heads)},
                 {"head_dim", head_dim},
                 {"vocab_size", embedding->second.shape.front()},
                 {"max_position_embeddings", keys.Integer("context_length")},
                 {family.eps, keys.Number(eps, 1e-5)},
                 {"rope_theta", theta},
                 {architecture.bias, file.tensors.contains(by_layer.Attention("attn_q.bias"))},
                 {"mlp_bias", architecture.mlp_bias && file.tensors.contains(by_layer.Mlp("ffn_up.bias"))},
                 {"tie_word_embeddings", !own_head},
                 {"torch_dtype", TypeInMemory(*embedding->second.type)}};
  if (std::string_view(architecture.bias) == "use_bias") config.erase("mlp_bias");
  config.update(Json::parse(architecture.settings));
  AddExperts(architecture.mixture, keys, experts, config);
  ReadGgufMixers(architecture, keys, layers, config);
  if (architecture.partial)
    config["partial_rotary_factor"] =
        static_cast<double>(keys.Integer("rope.dimension_count", head_dim)) / static_cast<double>(head_dim);
  if (architecture.large_at > 0)
    config["query_pre_attn_scalar"] = layers == architecture.large_at ? hidden / heads : head_dim;
  for (const GgufNumber& number : architecture.numbers) {
    const double value = keys.Number(number.key, 0);
    Check(value != 0 || !number.required, "{}: {} is missing", name, keys.Full(number.key));
    if (keys.Has(number.key)) config[number.setting] = value != 0 ? Json(value) : Json();
  }
  if (!rotates) {
    config["num_local_experts"] = 0;
    config["layer_types"] = std::vector<const char*>(layers, "attention");
    config["position_embedding_type"] = "nope";
  }
  Json scaling = RopeScaling(file, architecture, keys, theta, head_dim);
  if (scaling.is_null() && Json::parse(family.defaults).contains("rope_parameters"))
    scaling = {{"rope_type", "default"}};  // that of the family's config.json is another
  if (!scaling.is_null()) config["rope_scaling"] = std::move(scaling);
  AddWindows(architecture, family, keys, slides, config);
  AddTokens(metadata, config);
  keys.RefuseOthers();
  return config;
}

ModelConfig LoadGgufConfig(const std::filesystem::path& file) {
  return ConfigFromJson(GgufConfig(GgufFile(file).contents()), file.string());
}

std::optional<RopeSpec> FindLlama3Scaling(const std::vector<float>& factors, double theta, int64_t head_dim) {
  ModelConfig model;
  model.head_dim = head_dim;
  model.rope.theta = theta;
  const std::vector<float> plain = MakeRopeFrequencies(model).inverse;
  RopeSpec& rope = model.rope;
  rope.kind = RopeKind::kLlama3;
  rope.factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  rope.original_max_positions = 8192;  // as in all released models, with low 1 and high 4
  if (AreFactorsOf(model, plain, factors)) return rope;
  if (FitLlama3(plain, factors, rope) && AreFactorsOf(model, plain, factors)) return rope;
  return std::nullopt;
}

std::vector<std::pair<const char*, std::vector<float>>> GgufRopeFactors(const ModelConfig& config) {
  if (config.rope.kind == RopeKind::kLongRope)
    return {{kGgufLongFactors, {config.rope.long_factors.begin(), config.rope.long_factors.end()}},
            {kGgufShortFactors, {config.rope.short_factors.begin(), config.rope.short_factors.end()}}};
  if (config.rope.kind != RopeKind::kLlama3) return {};
  RopeSpec plain = config.rope;
  plain.kind = RopeKind::kDefault;
  const std::vector<float> scaled = MakeRopeFrequencies(config).inverse;
  std::vector<float> factors = MakeRopeFrequencies(plain, config.head_dim).inverse;
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return {{kGgufRopeFactors, std::move(factors)}};
}

std::vector<std::string> AddGgufConfig(const ModelConfig& config, const GgufArchitecture& architecture,
                                       const GgufSizes& sizes, GgufWriter& file) {
  std::vector<std::string> notes;
  const BlockSpec& block = config.block;
  const std::string a = std::string(architecture.name) + ".";
  file.AddText("general.architecture", architecture.name);
  const auto add_size = [&](const char* key, int64_t of_all, const std::vector<int32_t>& of_each) {
    of_each.empty() ? file.AddInteger(a + key, of_all) : file.AddIntegers(a + key, of_each);
  };
  file.AddInteger(a + "block_count", sizes.heads.empty() ? config.layers : std::ssize(sizes.heads));
  file.AddInteger(a + "context_length", config.max_positions);
  file.AddInteger(a + "embedding_length", config.hidden);
  add_size("feed_forward_length", config.intermediate, sizes.intermediate);
  if (const MixtureSpec& mixture = config.block.mixture; config.block.mixed) {
    file.AddInteger(a + "expert_count", mixture.experts);
    file.AddInteger(a + "expert_used_count", mixture.active);
    file.AddInteger(a + "expert_feed_forward_length", mixture.units);
    if (mixture.shared_units > 0) file.AddInteger(a + "expert_shared_feed_forward_length", mixture.shared_units);
  }
  add_size("attention.head_count", config.heads, sizes.heads);
  if (!architecture.short_convolution) add_size("attention.head_count_kv", config.kv_heads, sizes.kv_heads);
  file.AddInteger(a + "attention.key_length", config.head_dim);
  file.AddInteger(a + "attention.value_length", config.head_dim);
  file.AddInteger(a + "rope.dimension_count", config.rope.RotaryDim(config.head_dim));
  file.AddInteger(a + "vocab_size", config.vocab);
  file.AddNumber(a + (architecture.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
                 config.rms_eps);
  for (const GgufNumber& number : architecture.numbers)
    if (const double value = number.value(config); value != 0) file.AddNumber(a + number.key, value);

  const bool windows = block.AnyWindow();
  if (architecture.longrope) file.AddInteger(a + "attention.sliding_window", 0);
  if (architecture.full_every > 0 && (windows || architecture.always_windows)) {
    std::vector<bool> slides;
    bool regular = true;
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      slides.push_back(block.Window(layer) > 0);
      regular = regular && slides.back() == ((layer + 1) % architecture.full_every != 0);
    }
    file.AddInteger(a + "attention.sliding_window",
                    windows ? *std::max_element(block.windows.begin(), block.windows.end()) : config.max_positions);
    if (!regular) {
      file.AddFlags(a + "attention.sliding_window_pattern", slides);
      notes.push_back(
          fmt::format("The layers with a window are listed in {}attention.sliding_window_pattern. A program that does "
                      "not read this "
                      "key takes other layers for those with a window and computes another model.",
                      a));
    }
    const double theta = config.second_rope.theta;
    const bool second = std::find(block.ropes.begin(), block.ropes.end(), RopeChoice::kSecond) != block.ropes.end();
    if (second && theta != (architecture.sliding_theta > 0 ? architecture.sliding_theta : config.rope.theta))
      file.AddNumber(a + "rope.freq_base_swa", theta);
  }

  AddGgufMixers(config, architecture, file, notes);

  const RopeSpec& rope = config.rope;
  file.AddNumber(a + "rope.freq_base", rope.theta);
  if (architecture.rope_switch) file.AddFlag(a + "rope.scaling.finetuned", block.Rope(0) != RopeChoice::kNone);
  if (rope.kind == RopeKind::kLongRope) file.AddNumber(a + "rope.scaling.attn_factor", rope.attention_factor);
  if (rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLongRope || rope.query_beta != 0)
    file.AddInteger(a + "rope.scaling.original_context_length", rope.original_max_positions);
  if (rope.query_beta != 0) file.AddNumber(a + "attention.temperature_scale", rope.query_beta);
  if (rope.kind != RopeKind::kLinear && rope.kind != RopeKind::kYarn) return notes;
  file.AddText(a + "rope.scaling.type", rope.kind == RopeKind::kYarn ? "yarn" : "linear");
  if (rope.kind == RopeKind::kYarn && !rope.truncate)
    notes.emplace_back(
        "llama.cpp rounds the limits between which YaRN slows the frequencies, and the model does not: its logits are "
        "others, as with every GGUF file of gpt-oss.");
  file.AddNumber(a + "rope.scaling.factor", rope.factor);
  if (rope.kind == RopeKind::kLinear || !architecture.query_scale) return notes;  // the others have 32 and 1
  file.AddNumber(a + "rope.scaling.yarn_beta_fast", rope.beta_fast);
  file.AddNumber(a + "rope.scaling.yarn_beta_slow", rope.beta_slow);
  if (rope.attention_factor == 1) file.AddNumber(a + "rope.scaling.yarn_log_multiplier", 1);
  return notes;
}

}  // namespace shiftrt
