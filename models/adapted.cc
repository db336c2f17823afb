#include "models/adapted.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "models/decoder.h"
#include "runtime/check.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kFormatVersion = 1;
constexpr const char* kAdapterTensors = "adapters.safetensors";

Json ReadJson(const fs::path& file) { return ParseJson(ReadFile(file, 1 << 28), file.string()); }

TensorView View(const Matrix<float>& m, bool vector = false) {
  return {m.data(), DType::kFloat32,
          vector ? std::vector<int64_t>{m.cols()} : std::vector<int64_t>{m.rows(), m.cols()}};
}

// Tensor `name` as a matrix: (rows, cols), where a side of 0 takes what the file says, and finite throughout.
Matrix<float> ReadMatrix(const SafetensorsFile& file, const std::string& name, int64_t rows, int64_t cols) {
  const auto found = file.tensors().find(name);
  Check(found != file.tensors().end(), "{}: tensor {} is missing", file.path().string(), name);
  const TensorView& tensor = found->second;
  const bool vector = rows == 1 && tensor.shape.size() == 1;
  const int64_t have_rows = vector ? 1 : tensor.rows(), have_cols = vector ? tensor.shape[0] : tensor.cols();
  Check((vector || tensor.shape.size() == 2) && (rows == 0 || have_rows == rows) && (cols == 0 || have_cols == cols) &&
            tensor.dtype == DType::kFloat32,
        "{}: tensor {} is {} [{}], expected float32 [{}, {}] (0: any)", file.path().string(), name, Name(tensor.dtype),
        fmt::join(tensor.shape, ", "), rows, cols);
  Matrix<float> out(have_rows, have_cols);
  std::memcpy(out.data(), tensor.data, tensor.bytes());
  for (float value : out.span())
    Check(std::isfinite(value), "{}: tensor {} holds {}", file.path().string(), name, value);
  return out;
}

std::shared_ptr<const Lra> ReadLra(const SafetensorsFile& file, int64_t site, int64_t hidden) {
  const std::string prefix = fmt::format("site.{}.", site);
  Lra lra;
  lra.b = ReadMatrix(file, prefix + "b", 1, hidden);
  if (file.tensors().contains(prefix + "A")) {
    lra.a = ReadMatrix(file, prefix + "A", hidden, hidden);
  } else {
    lra.p = ReadMatrix(file, prefix + "P", hidden, 0);
    lra.q = ReadMatrix(file, prefix + "Q", lra.p.cols(), hidden);
  }
  return std::make_shared<const Lra>(std::move(lra));
}

std::vector<int64_t> LayerList(const Json& value, int64_t layers, const std::string& name) {
  Check(value.is_array() && !value.empty(), "{}: an adapter's layers are not a list", name);
  std::vector<int64_t> out;
  for (const Json& layer : value) {
    Check(layer.is_number_unsigned() && layer.get<uint64_t>() < static_cast<uint64_t>(layers),
          "{}: an adapter stands for layer {} of a model of {}", name, layer.dump(), layers);
    out.push_back(layer.get<int64_t>());
  }
  return out;
}

DepthPlan ReadPlan(const Json& stages, const fs::path& directory, const ModelConfig& config, int64_t named_layers) {
  const std::string name = (directory / kAdaptedFile).string();
  Check(stages.is_array() && !stages.empty(), "{}: plan is not a list of stages", name);
  std::unique_ptr<SafetensorsFile> adapters;
  DepthPlan plan;
  int64_t last = -1, site = 0;
  for (const Json& stage : stages) {
    Check(stage.is_object() && (stage.contains("block") || stage.contains("adapter")),
          "{}: stage {} is neither a block nor an adapter", name, stage.dump());
    if (stage.contains("block")) {
      const Json& block = stage["block"];
      Check(block.is_number_unsigned() && block.get<uint64_t>() < static_cast<uint64_t>(config.layers) &&
                block.get<int64_t>() > last,
            "{}: block {} after block {} in a model of {} layers", name, block.dump(), last, config.layers);
      last = block.get<int64_t>();
      plan.stages.push_back(BlockStage{last});
    } else {
      if (!adapters) adapters = std::make_unique<SafetensorsFile>(directory / kAdapterTensors);
      plan.stages.push_back(
          AdapterStage{LayerList(stage["adapter"], named_layers, name), ReadLra(*adapters, site++, config.hidden)});
    }
  }
  return plan;
}

// Copies what makes `from` a model apart from its weights: the tokenizer's files.
void CopyTokenizer(const fs::path& from, const fs::path& to) {
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "vocab.json", "merges.txt", "tokenizer.model"}) {
    if (!fs::exists(from / file)) continue;
    AtomicFile copy(to / file);
    copy.Write(ReadFile(from / file));
    copy.Commit();
  }
}

// The kept blocks under new, gapless numbers, and a config of that many layers.
void WriteKeptWeights(const Model& model, const DepthPlan& plan, const fs::path& directory) {
  const Weights& weights = *model.weights;
  std::vector<NamedTensor> tensors = {{"model.embed_tokens.weight", weights.embedding}};
  int64_t kept = 0;
  for (const Stage& stage : plan.stages) {
    const auto* block = std::get_if<BlockStage>(&stage);
    if (block == nullptr) continue;
    Weights::ForEachInBlock(TensorsOf(weights, *block), [&](const std::string& name, const TensorView& tensor) {
      tensors.push_back({fmt::format("model.layers.{}.{}", kept, name), tensor});
    });
    ++kept;
  }
  tensors.push_back({"model.norm.weight", weights.final_norm});
  if (!weights.config.tied_head) tensors.push_back({"lm_head.weight", weights.head});
  WriteSafetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  Json config = ReadJson(model.directory / "config.json");
  config["num_hidden_layers"] = kept;
  // Settings a layer, if the checkpoint has them, would no longer line up.
  config.erase("layer_types");
  AtomicFile file(directory / "config.json");
  file.Write(config.dump(2) + "\n");
  file.Commit();
  CopyTokenizer(model.directory, directory);
}

}  // namespace

void SaveAdapted(const Model& model, const DepthPlan& plan, const std::string& provenance, bool with_weights,
                 const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  Check(!error, "{}: cannot create the directory: {}", directory.string(), error.message());
  Check(!fs::exists(directory / "config.json") || !fs::equivalent(directory, model.directory),
        "{}: this is the model itself; save somewhere else", directory.string());
  Json stages = Json::array();
  std::vector<NamedTensor> tensors;
  int64_t block = 0, site = 0;
  for (const Stage& stage : plan.stages) {
    if (const auto* kept = std::get_if<BlockStage>(&stage)) {
      if (kept->folded && !with_weights)
        FailUsage("{}: block {} has weights of its own; save with --save-weights", directory.string(), kept->layer);
      stages.push_back({{"block", with_weights ? block++ : kept->layer}});
      continue;
    }
    const auto& adapter = std::get<AdapterStage>(stage);
    stages.push_back({{"adapter", adapter.layers}});
    const std::string prefix = fmt::format("site.{}.", site++);
    if (adapter.lra->low_rank()) {
      tensors.push_back({prefix + "P", View(adapter.lra->p)});
      tensors.push_back({prefix + "Q", View(adapter.lra->q)});
    } else {
      tensors.push_back({prefix + "A", View(adapter.lra->a)});
    }
    tensors.push_back({prefix + "b", View(adapter.lra->b, /*vector=*/true)});
  }
  if (with_weights) WriteKeptWeights(model, plan, directory);
  WriteSafetensors(directory / kAdapterTensors, tensors, {{"format", "shiftrt"}});
  // Last, so that a directory with this file is whole. One with its own weights names itself as the base.
  const Json json = {
      {"version", kFormatVersion},
      {"base", with_weights ? "." : fs::absolute(model.directory).lexically_normal().string()},
      {"fingerprint", with_weights ? LoadWeights(directory)->Fingerprint() : model.weights->Fingerprint()},
      {"layers", model.weights->config.layers},
      {"plan", stages},
      {"provenance", Json::parse(provenance)}};
  AtomicFile file(directory / kAdaptedFile);
  file.Write(json.dump(2) + "\n");
  file.Commit();
}

Model OpenAdapted(const fs::path& directory, const LoadOptions& options) {
  const fs::path file = directory / kAdaptedFile;
  const Json json = ReadJson(file);
  Check(json.is_object() && json.value("version", Json()) == kFormatVersion, "{}: not a version {} file", file.string(),
        kFormatVersion);
  for (const char* key : {"base", "fingerprint"})
    Check(json.contains(key) && json[key].is_string(), "{}: {} is missing", file.string(), key);
  Check(json.contains("plan"), "{}: plan is missing", file.string());
  Check(json.contains("layers") && json["layers"].is_number_unsigned(), "{}: layers is missing", file.string());
  const auto base = json["base"].get<std::string>();
  Model model;
  model.directory = base == "." ? directory : fs::path(base);
  Check(fs::exists(model.directory / "config.json"),
        "{}: its base model {} is not there; put it back, or save with --save-weights to be independent of it",
        file.string(), model.directory.string());
  model.weights = LoadWeights(model.directory, options);
  if (options.dtype == LoadDType::kAuto) {
    const std::string found = model.weights->Fingerprint(), expected = json["fingerprint"].get<std::string>();
    Check(found == expected, "{}: made from a model with fingerprint {}, but {} has {}", file.string(), expected,
          model.directory.string(), found);
  }
  model.plan = ReadPlan(json["plan"], directory, model.weights->config, json["layers"].get<int64_t>());
  model.provenance = json.dump(2);
  return model;
}

}  // namespace shiftrt
