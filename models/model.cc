// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <algorithm>
#include <cstdlib>

#include "models/adapted.h"
#include "models/hf_lra.h"
#include "runtime/check.h"
#include "runtime/gguf.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// Short names people type, and the Hugging Face repositories they mean.
struct KnownModel {
  const char* name;
  const char* repository;
};
constexpr KnownModel kKnownModels[] = {
    {"qwen2-1.5b", "Qwen/Qwen2-1.5B"},
    {"qwen2-1.5b-instruct", "Qwen/Qwen2-1.5B-Instruct"},
    {"qwen2-7b", "Qwen/Qwen2-7B"},
    {"qwen1.5-7b", "Qwen/Qwen1.5-7B"},
    {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B"},
    {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B"},
    {"qwen2.5-7b", "Qwen/Qwen2.5-7B"},
    {"qwen2.5-14b", "Qwen/Qwen2.5-14B"},
    {"qwen3-0.6b", "Qwen/Qwen3-0.6B"},
    {"qwen3-8b", "Qwen/Qwen3-8B"},
    {"llama-2-7b", "meta-llama/Llama-2-7b-hf"},
    {"llama-3.1-8b", "meta-llama/Llama-3.1-8B"},
    {"llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"},
    {"llama-3.2-1b", "meta-llama/Llama-3.2-1B"},
    {"mistral-7b", "mistralai/Mistral-7B-v0.1"},
    {"vicuna-7b", "lmsys/vicuna-7b-v1.5"},
};

// A variable of the environment, or "".
std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool HoldsModel(const fs::path& directory) {
  return fs::exists(directory / "config.json") || fs::exists(directory / kAdaptedFile);
}

// The first of `places` that holds a model; throws Error listing them otherwise.
fs::path FirstOf(const std::string& name, const std::vector<fs::path>& places) {
  std::string looked;
  for (const fs::path& place : places) {
    if (HoldsModel(place)) return place;
    looked += "\n  " + place.string();
  }
  Fail("model {} was not found; looked at:{}", name, looked);
}

std::vector<fs::path> DemoPlaces() {
  std::vector<fs::path> places;
  if (const auto demo = Environment("SHIFTRT_DEMO"); !demo.empty()) places.emplace_back(demo);
  places.emplace_back(fs::path(SHIFTRT_SOURCE_DIR) / "models/demo");
  places.emplace_back(fs::path(SHIFTRT_DATA_DIR) / "demo");
  return places;
}

// DIR/name and DIR/Repository's last part under SHIFTRT_MODELS, then every snapshot in the Hugging Face cache.
std::vector<fs::path> KnownPlaces(const std::string& name, const std::string& repository) {
  std::vector<fs::path> places;
  const std::string roots = Environment("SHIFTRT_MODELS");
  for (size_t begin = 0; begin < roots.size();) {
    const size_t end = std::min(roots.find(':', begin), roots.size());
    const fs::path root = roots.substr(begin, end - begin);
    begin = end + 1;
    places.push_back(root / name);
    places.push_back(root / repository.substr(repository.find('/') + 1));
  }
  std::string folder = "models--" + repository;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path snapshots = HuggingFaceCache() / folder / "snapshots";
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(snapshots, none)) places.push_back(entry.path());
  if (none) places.push_back(snapshots / "*");
  return places;
}

}  // namespace

fs::path HuggingFaceCache() {
  if (const auto cache = Environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const auto home = Environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  return fs::path(Environment("HOME")) / ".cache/huggingface/hub";
}

fs::path ResolveModel(const std::string& name) {
  if (IsGguf(name)) return name;
  if (fs::is_directory(name)) return FirstOf(name, {name});
  if (name == "demo") return FirstOf(name, DemoPlaces());
  for (const KnownModel& known : kKnownModels)
    if (name == known.name) return FirstOf(name, KnownPlaces(name, known.repository));
  std::string names = "demo";
  for (const KnownModel& known : kKnownModels) names += std::string(", ") + known.name;
  Fail("model {} is neither a directory, a GGUF file nor a known name ({})", name, names);
}

Model OpenModel(const std::string& name, const LoadOptions& options) {
  const fs::path directory = ResolveModel(name);
  Model model;
  model.name = name;
  if (fs::exists(directory / kAdaptedFile)) {
    model = OpenAdapted(directory, options);
    model.name = name;
  } else if (IsHfLra(directory)) {
    model = OpenHfLra(directory, options);
    model.name = name;
  } else {
    model.directory = directory;
    model.weights = LoadWeights(directory, options);
    model.plan = DepthPlan::Original(model.weights->config.layers);
  }
  if (!HasTokenizer(model.directory)) return model;
  model.tokenizer = LoadTokenizer(model.directory);
  Check(model.tokenizer->vocab_size() <= model.weights->config.vocab,
        "{}: the tokenizer has {} tokens, the model's vocabulary {}: they do not belong together",
        model.directory.string(), model.tokenizer->vocab_size(), model.weights->config.vocab);
  return model;
}

const Tokenizer& Model::RequireTokenizer() const {
  Check(tokenizer != nullptr, "{}: text cannot be read or written without a tokenizer ({})", directory.string(),
        kTokenizerFiles);
  return *tokenizer;
}

std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& name) {
  if (fs::is_directory(name) && !HoldsModel(name)) return LoadTokenizer(name);
  const fs::path directory = ResolveModel(name);
  return LoadTokenizer(fs::exists(directory / kAdaptedFile) ? AdaptedBase(directory) : directory);
}

}  // namespace shiftrt
