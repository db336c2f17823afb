// SPDX-License-Identifier: Apache-2.0
#include "models/adapted.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/plan_checkpoint.h"
#include "models/saved_config.h"
#include "runtime/check.h"
#include "runtime/gguf.h"
#include "runtime/json.h"
#include "runtime/progress.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A file is of the lowest version that says all of its plan, so that a program refuses what it would misread: half
// blocks came with version 2.
constexpr int kFirstVersion = 1, kHalvesVersion = 2;
constexpr const char* kAdapterTensors = "adapters.safetensors";
constexpr const char* kStandalone = ".";  // as base: the directory has weights of its own

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
  if (tensor.bytes() > 0) std::memcpy(out.data(), tensor.data, tensor.bytes());
  for (float value : out.span())
    Check(std::isfinite(value), "{}: tensor {} holds {}", file.path().string(), name, value);
  return out;
}

std::shared_ptr<const Lra> ReadLra(const SafetensorsFile& file, int64_t site, int64_t hidden) {
  const std::string prefix = fmt::format("site.{}.", site);
  Lra lra;
  lra.b = ReadMatrix(file, prefix + "b", 1, hidden);
  if (file.tensors().contains(prefix + "A")) {
    Check(!file.tensors().contains(prefix + "P") && !file.tensors().contains(prefix + "Q"),
          "{}: {}A stands beside {}P or {}Q", file.path().string(), prefix, prefix, prefix);
    lra.a = ReadMatrix(file, prefix + "A", hidden, hidden);
  } else {
    lra.p = ReadMatrix(file, prefix + "P", hidden, 0);
    lra.q = ReadMatrix(file, prefix + "Q", 0, hidden);
    Check(lra.q.rows() == lra.p.cols(), "{}: tensor {}Q has {} rows, and {}P has {} columns", file.path().string(),
          prefix, lra.q.rows(), prefix, lra.p.cols());  // 0: a bias alone
  }
  return std::make_shared<const Lra>(std::move(lra));
}

// shiftrt.json with the types of its fields checked, all but the plan's.
struct AdaptedHeader {
  std::string base, fingerprint;
  int version = kFirstVersion;
  int64_t layers = 0;  // of the original model
  std::vector<int64_t> removed;
  Json json;

  bool standalone() const { return base == kStandalone; }
};

// Layers of the original, ascending.
std::vector<int64_t> LayerList(const Json& value, int64_t layers, const std::string& name, const char* what) {
  Check(value.is_array(), "{}: {} {} is not a list of layers", name, what, value.dump());
  std::vector<int64_t> out;
  for (const Json& layer : value) {
    Check(layer.is_number_unsigned() && layer.get<uint64_t>() < static_cast<uint64_t>(layers),
          "{}: {} {} is not a layer of a model of {}", name, what, layer.dump(), layers);
    Check(out.empty() || layer.get<int64_t>() > out.back(), "{}: {} {} is not ascending", name, what, value.dump());
    out.push_back(layer.get<int64_t>());
  }
  return out;
}

AdaptedHeader ReadHeader(const fs::path& file) {
  const std::string name = file.string();
  AdaptedHeader header;
  header.json = ReadJson(file);
  const Json& json = header.json;
  const Json version = json.is_object() ? json.value("version", Json()) : Json();
  Check(version == kFirstVersion || version == kHalvesVersion, "{}: version {}, expected {} or {}", name,
        version.dump(), kFirstVersion, kHalvesVersion);
  for (const char* key : {"base", "fingerprint"})
    Check(json.contains(key) && json[key].is_string(), "{}: {} is missing", name, key);
  for (const char* key : {"plan", "removed"}) Check(json.contains(key), "{}: {} is missing", name, key);
  Check(json.contains("layers") && json["layers"].is_number_unsigned() && json["layers"].get<uint64_t>() <= INT64_MAX,
        "{}: layers is missing", name);
  header.version = version.get<int>();
  header.base = json["base"].get<std::string>();
  header.fingerprint = json["fingerprint"].get<std::string>();
  header.layers = json["layers"].get<int64_t>();
  header.removed = LayerList(json["removed"], header.layers, name, "removed");
  Check(header.standalone() || (fs::path(header.base).is_absolute() && header.base.find('\0') == std::string::npos),
        "{}: base is {}, expected an absolute path or \"{}\"", name, json["base"].dump(), kStandalone);
  return header;
}

// Every tensor belongs to one of the first `sites` sites.
void RefuseLeftOver(const SafetensorsFile& file, int64_t sites) {
  size_t expected = 0;
  for (int64_t site = 0; site < sites; ++site)
    expected += file.tensors().contains(fmt::format("site.{}.A", site)) ? 2 : 3;
  Check(file.tensors().size() == expected && file.others().empty(),
        "{}: {} tensors, but the plan's {} adapters have {}", file.path().string(),
        file.tensors().size() + file.others().size(), sites, expected);
}

// Which halves of a block run: both, unless the stage names one.
Halves ReadHalves(const Json& stage, int version, const std::string& name) {
  if (!stage.contains("halves")) return Halves::kBoth;
  const Json& value = stage["halves"];
  Check(version >= kHalvesVersion, "{}: stage {} has halves, which a file of version {} cannot have", name,
        stage.dump(), version);
  const auto halves = value.is_string() ? ParseHalves(value.get_ref<const std::string&>()) : std::nullopt;
  Check(halves.has_value(), "{}: halves {} of a block, expected \"attention\", \"mlp\" or \"both\"", name,
        value.dump());
  return *halves;
}

// A block of the plan; `last` is the layer of the block before it, or -1.
BlockStage ReadBlock(const Json& stage, int64_t last, const AdaptedHeader& header, int64_t layers,
                     const std::string& name) {
  const Json& block = stage["block"];
  Check(block.is_number_unsigned() && block.get<uint64_t>() < static_cast<uint64_t>(layers) &&
            block.get<int64_t>() > last,
        "{}: block {} after block {} in a model of {} layers", name, block.dump(), last, layers);
  const auto layer = block.get<int64_t>();
  Check(header.standalone() || !std::binary_search(header.removed.begin(), header.removed.end(), layer),
        "{}: block {} is among the removed layers", name, layer);
  return BlockStage{layer, ReadHalves(stage, header.version, name)};
}

DepthPlan ReadPlan(const AdaptedHeader& header, const fs::path& directory, const ModelConfig& config) {
  const std::string name = (directory / kAdaptedFile).string();
  const Json& stages = header.json["plan"];
  Check(header.standalone() || header.layers == config.layers, "{}: layers is {}, but the base model has {}", name,
        header.layers, config.layers);
  Check(stages.is_array() && !stages.empty(), "{}: plan is not a list of stages", name);
  std::unique_ptr<SafetensorsFile> adapters;
  DepthPlan plan;
  int64_t last = -1, site = 0;
  for (const Json& stage : stages) {
    Check(stage.is_object() && (stage.contains("block") || stage.contains("adapter")),
          "{}: stage {} is neither a block nor an adapter", name, stage.dump());
    const size_t settings = stage.contains("block") ? 1 + stage.count("halves") : 1;
    Check(stage.size() == settings, "{}: stage {} has more than a block with its halves, or an adapter", name,
          stage.dump());
    if (stage.contains("block")) {
      plan.stages.push_back(ReadBlock(stage, last, header, config.layers, name));
      last = stage["block"].get<int64_t>();
      continue;
    }
    if (!adapters) adapters = std::make_unique<SafetensorsFile>(directory / kAdapterTensors);
    const auto layers = LayerList(stage["adapter"], header.layers, name, "adapter");
    Check(!layers.empty() && std::includes(header.removed.begin(), header.removed.end(), layers.begin(), layers.end()),
          "{}: adapter {} does not stand for removed layers", name, stage["adapter"].dump());
    plan.stages.push_back(AdapterStage{layers, ReadLra(*adapters, site++, config.hidden)});
  }
  Check(plan.blocks() + static_cast<int64_t>(header.removed.size()) == header.layers,
        "{}: {} blocks in the plan and {} removed, of {} layers", name, plan.blocks(), header.removed.size(),
        header.layers);
  if (adapters) RefuseLeftOver(*adapters, site);
  return plan;
}

void CheckFingerprint(const AdaptedHeader& header, const Weights& weights, const fs::path& file, const fs::path& base) {
  const std::string found = weights.Fingerprint();
  Check(found == header.fingerprint, "{}: made from a model with fingerprint {}, but {} has {}", file.string(),
        header.fingerprint, base.string(), found);
}

// The plan as shiftrt.json lists it, and its adapters' tensors. With `renumber` the kept blocks count from 0.
struct SavedPlan {
  int version = kFirstVersion;
  Json stages = Json::array();
  std::vector<NamedTensor> tensors;
};
SavedPlan Describe(const DepthPlan& plan, bool renumber) {
  SavedPlan saved;
  int64_t block = 0, site = 0;
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& kept) {
          Json described = {{"block", renumber ? block++ : kept.layer}};
          if (kept.halves != Halves::kBoth) {
            described["halves"] = Name(kept.halves);
            saved.version = kHalvesVersion;
          }
          saved.stages.push_back(std::move(described));
        },
        [&](const AdapterStage& adapter) {
          saved.stages.push_back({{"adapter", adapter.layers}});
          const std::string prefix = fmt::format("site.{}.", site++);
          if (adapter.lra->low_rank()) {
            saved.tensors.push_back({prefix + "P", View(adapter.lra->p)});
            saved.tensors.push_back({prefix + "Q", View(adapter.lra->q)});
          } else {
            saved.tensors.push_back({prefix + "A", View(adapter.lra->a)});
          }
          saved.tensors.push_back({prefix + "b", View(adapter.lra->b, /*vector=*/true)});
        });
  }
  return saved;
}

}  // namespace

void SaveAdapted(const Model& model, const DepthPlan& plan, const Json& provenance, bool with_weights,
                 const fs::path& directory) {
  AtomicDirectory out(directory);
  Check(!fs::exists(directory / "config.json") || !fs::equivalent(directory, model.directory),
        "{}: this is the model itself; save somewhere else", directory.string());
  Check(!with_weights || plan.blocks() > 0, "{}: a model without blocks cannot be saved with its weights",
        directory.string());
  for (const BlockStage* block : plan.Blocks())
    if (block->own && !with_weights)
      FailUsage(Field("with_weights"), "{}: block {} has tensors of its own, which are saved with all weights only",
                directory.string(), block->layer);
  std::string fingerprint;
  if (with_weights) {
    const Weights kept = KeptWeights(*model.weights, plan);
    NoProgress quiet;
    WriteCheckpoint(StoredTensors(kept), kOneFile, out, quiet);
    const Json config = PlanConfig(model, plan);
    out.Create("config.json").Write((IsStock(plan) ? config : Marked(config)).dump(2) + "\n");
    CopyCompanions(model, out);
    fingerprint = kept.Fingerprint();
  } else {
    fingerprint = model.weights->Fingerprint();
  }
  const SavedPlan saved = Describe(plan, /*renumber=*/with_weights);
  WriteSafetensors(out.Create(kAdapterTensors), saved.tensors, {{"format", "shiftrt"}});
  // Last, so that a directory with this file is whole. One with its own weights names itself as the base.
  const Json json = {{"version", saved.version},
                     {"base", with_weights ? kStandalone : fs::absolute(model.directory).lexically_normal().string()},
                     {"fingerprint", fingerprint},
                     {"layers", model.weights->config.layers},
                     {"removed", plan.RemovedLayers(model.weights->config.layers)},
                     {"plan", saved.stages},
                     {"provenance", provenance}};
  out.Create(kAdaptedFile).Write(json.dump(2) + "\n");
  out.Commit();
}

fs::path AdaptedBase(const fs::path& directory) {
  const AdaptedHeader header = ReadHeader(directory / kAdaptedFile);
  return header.standalone() ? directory : fs::path(header.base);
}

DepthPlan OpenSavedPlan(const fs::path& directory, const Weights& weights) {
  const fs::path file = directory / kAdaptedFile;
  const AdaptedHeader header = ReadHeader(file);
  CheckFingerprint(header, weights, file, "the model that is open");
  return ReadPlan(header, directory, weights.config);
}

Provenance ReadProvenance(const Json& provenance) {
  const auto text = [&](const char* pointer) {
    const Json::json_pointer at(pointer);
    return provenance.contains(at) && provenance[at].is_string() ? provenance[at].get<std::string>() : "";
  };
  return {text("/selection/criterion"), text("/correction"), text("/merge")};
}

Json OpenProvenance(const fs::path& directory) {
  if (!fs::exists(directory / kAdaptedFile)) {
    const fs::path config = directory / "config.json";
    const Json::json_pointer provenance("/shiftrt/provenance");
    return ParseJson(ReadFile(config, kMaxConfigBytes), config.string()).value(provenance, Json());
  }
  return ReadHeader(directory / kAdaptedFile).json.value("provenance", Json());
}

void RecordProvenance(const fs::path& directory, const Json& provenance) {
  Json json = ReadHeader(directory / kAdaptedFile).json;
  json["provenance"] = provenance;
  WriteFile(directory / kAdaptedFile, json.dump(2) + "\n");
}

Model OpenAdapted(const fs::path& directory, const LoadOptions& options) {
  const fs::path file = directory / kAdaptedFile;
  const AdaptedHeader header = ReadHeader(file);
  Model model;
  model.directory = header.standalone() ? directory : fs::path(header.base);
  std::error_code error;
  Check(IsGguf(model.directory) || fs::exists(model.directory / "config.json", error),
        "{}: its base model {} is not there; put it back, or save with the weights to be independent of it",
        file.string(), model.directory.string());
  const std::string config = (IsGguf(model.directory) ? model.directory : model.directory / "config.json").string();
  model.weights = LoadWeights(model.directory, ParseConfig(BaseConfig(model.directory).dump(), config), options);
  CheckFingerprint(header, *model.weights, file, model.directory);
  model.plan = ReadPlan(header, directory, model.weights->config);
  model.removed = header.removed;
  model.provenance = ReadProvenance(header.json.value("provenance", Json()));
  return model;
}

}  // namespace shiftrt
