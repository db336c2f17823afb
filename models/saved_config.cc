// SPDX-License-Identifier: Apache-2.0
#include "models/saved_config.h"

#include <algorithm>
#include <string_view>

#include "models/config.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kMark = "shiftrt";  // the key, and the model type
constexpr const char* kArchitecture = "ShiftrtForCausalLM";
// The second has half blocks; the third also norms of adapters, and MLPs of several widths.
constexpr int kHfLraFormat = 1, kHfLraHalves = 2, kHfLraNorms = 3;

// The settings that say which layers have an MLP in place of a mixture of experts.
constexpr const char *kDenseLayers = "mlp_only_layers", *kSparseStep = "decoder_sparse_step";

// Names the layers without a mixture of experts by their numbers among the kept layers.
void KeepDenseLayers(Json& config, const std::vector<int64_t>& kept) {
  const Json named = config.value(kDenseLayers, Json());
  const Json every = config.value(kSparseStep, Json());
  if (!named.is_array() && !every.is_number_integer()) return;
  const int64_t step = every.is_number_integer() ? every.get<int64_t>() : 1;
  Json dense = Json::array();
  for (size_t i = 0; i < kept.size(); ++i) {
    const bool by_name = named.is_array() && std::find(named.begin(), named.end(), kept[i]) != named.end();
    if (by_name || (kept[i] + 1) % step != 0) dense.push_back(i);
  }
  config[kDenseLayers] = std::move(dense);
  if (every.is_number_integer()) config[kSparseStep] = 1;
}

// True if `key` may be a list with one setting per layer.
bool MayBePerLayer(std::string_view key, const Json& value, int64_t layers) {
  const bool of_tokens = key.ends_with("_token_id") || key.ends_with("_token_ids") || key.ends_with("_tokens");
  return value.is_array() && std::ssize(value) == layers && !of_tokens && key != "architectures" &&
         key != "layer_types" && key != kDenseLayers;
}

// The entries of the kept layers. Layers beyond the end of the list are skipped.
Json OfLayers(const Json& list, const std::vector<int64_t>& kept) {
  Json of_kept = Json::array();
  for (const int64_t layer : kept)
    if (layer < std::ssize(list)) of_kept.push_back(list[layer]);
  return of_kept;
}

// Adds to a mark the number of its format, and the family of `config`.
Json OfFamily(Json mark, const Json& config) {
  const Json adapters = mark.value("adapters", Json::array());
  const bool norms =
      std::any_of(adapters.begin(), adapters.end(), [](const Json& one) { return one.contains("norm"); });
  mark["format"] = norms || mark.contains("mlp_units") || mark.contains(kAsLlama) ? kHfLraNorms
                   : mark.contains("half_blocks")                                 ? kHfLraHalves
                                                                                  : kHfLraFormat;
  mark["base_architecture"] = config.at("architectures").at(0);
  const Json type = config.value("model_type", Json());
  Check(type.is_string(), "config.json: model_type is {}, and transformers needs its name there", Shown(type));
  mark["base_model_type"] = type;
  return mark;
}

// Gives the config of a Llama the entries that the blocks' own config has: `as_llama` of its mark.
void TakeBack(const Json& as_llama, const std::string& file, Json& config) {
  Check(as_llama.is_object() && as_llama.value("replaced", Json()).is_object() &&
            as_llama.value("added", Json()).is_array(),
        "{}: {}.{} is {}, expected an object with replaced and added", file, kMark, kAsLlama, Shown(as_llama));
  for (const Json& key : as_llama["added"]) {
    Check(key.is_string(), "{}: {}.{}.added has {}, expected keys", file, kMark, kAsLlama, Shown(key));
    config.erase(key.get<std::string>());
  }
  for (const auto& [key, value] : as_llama["replaced"].items()) config[key] = value;
}

}  // namespace

Json KeptConfig(Json config, const DepthPlan& plan, std::vector<std::string>* resized) {
  const std::vector<int64_t> kept = plan.KeptLayers();
  const Json layers = config.value("num_hidden_layers", Json());
  if (layers.is_number_integer() && layers != kept.size()) {
    for (auto& [key, value] : config.items()) {
      if (!MayBePerLayer(key, value, layers.get<int64_t>())) continue;
      value = OfLayers(value, kept);
      if (resized != nullptr) resized->push_back(key);
    }
  }
  config["num_hidden_layers"] = kept.size();
  KeepDenseLayers(config, kept);
  if (const auto types = config.find("layer_types"); types != config.end() && types->is_array())
    *types = OfLayers(*types, kept);
  if (const auto first = config.find("max_window_layers"); first != config.end() && first->is_number()) {
    const auto value = first->get<double>();
    *first = std::count_if(kept.begin(), kept.end(), [&](int64_t layer) { return static_cast<double>(layer) < value; });
  }
  return config;
}

bool IsStock(const DepthPlan& plan) {
  return std::all_of(plan.stages.begin(), plan.stages.end(), [](const Stage& stage) {
    return stage.Visit([](const BlockStage& block) { return block.halves == Halves::kBoth; },
                       [](const AdapterStage&) { return false; });
  });
}

Json Marked(Json config) {
  Json stock = Json::object();
  for (const char* key : {"architectures", "model_type"})
    if (config.contains(key)) stock[key] = config[key];
  config[kMark] = std::move(stock);
  config["architectures"] = Json::array({kArchitecture});
  config["model_type"] = kMark;
  return config;
}

Json MarkedAsLlama(const Json& config, Json llama, Json mark) {
  Json replaced = Json::object(), added = Json::array();
  for (const auto& [key, value] : config.items())
    if (!llama.contains(key) || llama[key] != value) replaced[key] = value;
  for (const auto& [key, value] : llama.items())
    if (!config.contains(key)) added.push_back(key);
  mark[kAsLlama] = {{"replaced", std::move(replaced)}, {"added", std::move(added)}};
  llama[kMark] = OfFamily(std::move(mark), config);
  return llama;
}

Json MarkedHfLra(Json config, Json mark) {
  config[kMark] = OfFamily(std::move(mark), config);
  config["architectures"] = Json::array({kArchitecture});
  config["model_type"] = kMark;
  config["auto_map"] = {{"AutoConfig", "configuration_shiftrt.ShiftrtConfig"},
                        {"AutoModelForCausalLM", "modeling_shiftrt.ShiftrtForCausalLM"}};
  return config;
}

bool IsMarkedHfLra(const Json& config) {
  const auto mark = config.is_object() ? config.find(kMark) : config.end();
  return config.is_object() && mark != config.end() && mark->is_object() && mark->contains("format");
}

Json ReadUnmarked(const std::filesystem::path& file) {
  Json config = ParseJson(ReadFile(file, kMaxConfigBytes), file.string());
  Check(config.is_object(), "{}: not a JSON object", file.string());
  if (!config.contains(kMark)) return TextConfig(config, file.string());
  Json stock = config[kMark];
  if (IsMarkedHfLra(config)) {
    Check(stock["format"] == kHfLraFormat || stock["format"] == kHfLraHalves || stock["format"] == kHfLraNorms,
          "{}: {}.format is {}, expected {} to {}", file.string(), kMark, Shown(stock["format"]), kHfLraFormat,
          kHfLraNorms);
    Check(stock["format"] != kHfLraFormat || !stock.contains("half_blocks"),
          "{}: {}.half_blocks is there, which format {} does not have", file.string(), kMark, kHfLraFormat);
    if (stock.contains(kAsLlama)) TakeBack(stock[kAsLlama], file.string(), config);
    stock = {{"architectures", Json::array({stock.value("base_architecture", Json())})},
             {"model_type", stock.value("base_model_type", Json())}};
    config.erase("auto_map");
  }
  Check(stock.is_object() && stock.contains("architectures"), "{}: {} is {}, expected an object with architectures",
        file.string(), kMark, Shown(stock));
  for (const char* key : {kMark, "architectures", "model_type"}) config.erase(key);
  for (const char* key : {"architectures", "model_type"})
    if (stock.contains(key)) config[key] = stock[key];
  return config;
}

}  // namespace shiftrt
