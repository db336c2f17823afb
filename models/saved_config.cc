// SPDX-License-Identifier: Apache-2.0
#include "models/saved_config.h"

#include <algorithm>

#include "models/config.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kMark = "shiftrt";  // the key, and the model type
constexpr const char* kArchitecture = "ShiftrtForCausalLM";

}  // namespace

Json KeptConfig(Json config, const DepthPlan& plan) {
  const std::vector<int64_t> kept = plan.KeptLayers();
  config["num_hidden_layers"] = kept.size();
  if (const auto types = config.find("layer_types"); types != config.end() && types->is_array()) {
    Json of_kept = Json::array();
    for (const int64_t layer : kept)
      if (static_cast<size_t>(layer) < types->size()) of_kept.push_back((*types)[layer]);
    *types = std::move(of_kept);
  }
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

Json ReadUnmarked(const std::filesystem::path& file) {
  Json config = ParseJson(ReadFile(file, kMaxConfigBytes), file.string());
  Check(config.is_object(), "{}: not a JSON object", file.string());
  if (!config.contains(kMark)) return config;
  const Json stock = config[kMark];
  Check(stock.is_object() && stock.contains("architectures"), "{}: {} is {}, expected an object with architectures",
        file.string(), kMark, stock.dump());
  for (const char* key : {kMark, "architectures", "model_type"}) config.erase(key);
  for (const char* key : {"architectures", "model_type"})
    if (stock.contains(key)) config[key] = stock[key];
  return config;
}

}  // namespace shiftrt
