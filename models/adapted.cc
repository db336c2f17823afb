// SPDX-License-Identifier: Apache-2.0
#include "models/adapted.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "hub/cache.h"
#include "models/block_tensors.h"
#include "models/checkpoint.h"
#include "models/own_tensors.h"
#include "models/part_json.h"
#include "models/plan_checkpoint.h"
#include "models/provenance.h"
#include "models/saved_config.h"
#include "runtime/check.h"
#include "runtime/gguf.h"
#include "runtime/json.h"
#include "runtime/progress.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A file has the lowest version that can describe its plan, so that older programs refuse only files that they would
// misread: version 2 added half blocks, version 3 tensors of the plan's own and LoRA factors.
constexpr int kFirstVersion = 1, kHalvesVersion = 2, kOwnVersion = 3;
constexpr const char *kAdapterTensors = "adapters.safetensors", *kOwnTensors = "own.safetensors";
constexpr const char *kFinalNorm = "model.norm.weight", *kFinalNormBias = "model.norm.bias", *kHead = "lm_head.weight";
constexpr const char* kStandalone = ".";  // as base: the directory has weights of its own

Json ReadJson(const fs::path& file) { return ParseJson(ReadFile(file, 1 << 28), file.string()); }

TensorView View(const Matrix<float>& m, bool vector = false) {
  return {m.data(), DType::kFloat32,
          vector ? std::vector<int64_t>{m.cols()} : std::vector<int64_t>{m.rows(), m.cols()}};
}

// Reads tensor `name` as a matrix of shape (rows, cols); a side of 0 accepts any size. Throws Error for a value that is
// not finite.
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
struct AdaptedHeader {  // NOLINT(bugprone-exception-escape): JSON is moved without an exception
  std::string base, fingerprint;
  int version = kFirstVersion;
  int64_t layers = 0;  // layers of the original model
  std::vector<int64_t> removed;
  Json json;

  bool standalone() const { return base == kStandalone; }
};

// Reads a list of ascending layers of the original model.
std::vector<int64_t> LayerList(const Json& value, int64_t layers, const std::string& name, const char* what) {
  Check(value.is_array(), "{}: {} {} is not a list of layers", name, what, Shown(value));
  std::vector<int64_t> out;
  for (const Json& layer : value) {
    Check(layer.is_number_unsigned() && layer.get<uint64_t>() < static_cast<uint64_t>(layers),
          "{}: {} {} is not a layer of a model of {}", name, what, Shown(layer), layers);
    Check(out.empty() || layer.get<int64_t>() > out.back(), "{}: {} {} is not ascending", name, what, Shown(value));
    out.push_back(layer.get<int64_t>());
  }
  return out;
}

// The parts that an adapter replaces, in the order of depth.
std::vector<BlockPart> PartList(const Json& value, const AdaptedHeader& header, const std::string& name) {
  Check(value.is_array() && !value.empty(), "{}: adapter {} is not a list of layers", name, Shown(value));
  std::vector<BlockPart> parts;
  for (const Json& one : value) {
    try {
      parts.push_back(one.get<BlockPart>());
    } catch (const Error& error) {
      Fail("{}: adapter {}: {}", name, Shown(value), error.what());
    }
    const BlockPart& part = parts.back();
    Check(part.layer < header.layers, "{}: adapter {} is not a layer of a model of {}", name, Shown(one),
          header.layers);
    Check(parts.size() == 1 || part.begin() >= parts[parts.size() - 2].end(), "{}: adapter {} is not ascending", name,
          Shown(value));
    const bool gone = std::binary_search(header.removed.begin(), header.removed.end(), part.layer);
    Check(gone == (part.halves == Halves::kBoth), "{}: adapter {} does not stand for removed layers", name,
          Shown(value));
    Check(part.halves == Halves::kBoth || header.version >= kHalvesVersion,
          "{}: adapter {} stands for half a block, which a file of version {} cannot have", name, Shown(value),
          header.version);
  }
  return parts;
}

AdaptedHeader ReadHeader(const fs::path& file) {
  const std::string name = file.string();
  AdaptedHeader header;
  header.json = ReadJson(file);
  const Json& json = header.json;
  const Json version = json.is_object() ? json.value("version", Json()) : Json();
  Check(version.is_number_unsigned() && version >= kFirstVersion && version <= kOwnVersion,
        "{}: version {}, expected {} to {}", name, Shown(version), kFirstVersion, kOwnVersion);
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
        "{}: base is {}, expected an absolute path or \"{}\"", name, Shown(json["base"]), kStandalone);
  return header;
}

// The checksum of a file of tensors, which shiftrt.json holds.
std::string ChecksumOf(const SafetensorsFile& file) { return ChecksumOf("", file.tensors()); }

// Throws Error for a tensor that belongs to none of the first `sites` sites.
void RefuseLeftOver(const SafetensorsFile& file, int64_t sites) {
  size_t expected = 0;
  for (int64_t site = 0; site < sites; ++site)
    expected += file.tensors().contains(fmt::format("site.{}.A", site)) ? 2 : 3;
  Check(file.tensors().size() == expected && file.others().empty(),
        "{}: {} tensors, but the plan's {} adapters have {}", file.path().string(),
        file.tensors().size() + file.others().size(), sites, expected);
}

// The name of a block's own tensor in its file.
std::string OwnName(int64_t layer, const BlockTensor& row) {
  return fmt::format("model.layers.{}.{}", layer, row.name);
}

// The halves of a block that run: both, unless the stage names one.
Halves ReadHalves(const Json& stage, int version, const std::string& name) {
  if (!stage.contains("halves")) return Halves::kBoth;
  const Json& value = stage["halves"];
  Check(version >= kHalvesVersion, "{}: stage {} has halves, which a file of version {} cannot have", name,
        Shown(stage), version);
  const auto halves = value.is_string() ? ParseHalves(value.get_ref<const std::string&>()) : std::nullopt;
  Check(halves.has_value(), "{}: halves {} of a block, expected \"attention\", \"mlp\" or \"both\"", name,
        Shown(value));
  return *halves;
}

// Reads a block of the plan; `last` is the layer of the block before it, or -1.
BlockStage ReadBlock(const Json& stage, int64_t last, const AdaptedHeader& header, int64_t layers,
                     const std::string& name) {
  const Json& block = stage["block"];
  Check(block.is_number_unsigned() && block.get<uint64_t>() < static_cast<uint64_t>(layers) &&
            block.get<int64_t>() > last,
        "{}: block {} after block {} in a model of {} layers", name, Shown(block), last, layers);
  const auto layer = block.get<int64_t>();
  Check(header.standalone() || !std::binary_search(header.removed.begin(), header.removed.end(), layer),
        "{}: block {} is among the removed layers", name, layer);
  return BlockStage{layer, ReadHalves(stage, header.version, name)};
}

// Reads a list of names of tensors, which must be among `known`. Empty if the key is missing.
std::set<std::string> NameList(const Json& object, const char* key, const std::set<std::string>& known,
                               const std::string& file, int version) {
  std::set<std::string> names;
  if (!object.contains(key)) return names;
  const Json& list = object[key];
  Check(version >= kOwnVersion, "{}: it has {}, which a file of version {} cannot have", file, key, version);
  Check(list.is_array() && !list.empty(), "{}: {} {} is not a list of tensors", file, key, Shown(list));
  for (const Json& name : list) {
    Check(name.is_string() && known.contains(name.get<std::string>()), "{}: {} {} is not a tensor there (known: {})",
          file, key, Shown(name), fmt::join(known, ", "));
    Check(names.insert(name.get<std::string>()).second, "{}: {} {} is named twice", file, key, Shown(name));
  }
  return names;
}

// The names of all tensors of a block, or only of its matrices.
std::set<std::string> KnownTensors(const ModelConfig& config, bool matrices) {
  std::set<std::string> names;
  for (const BlockTensor& row : BlockTensors())
    if (!row.Shape(config).empty() && (!matrices || row.kind == BlockTensor::Kind::kMatrix)) names.insert(row.name);
  return names;
}

// Reads the tensors of a plan's own from their file, in the type that the model is loaded in.
class OwnReader {
 public:
  OwnReader(const fs::path& path, const LoadOptions& options)
      : file_(std::make_shared<SafetensorsFile>(path)), options_(options), loaded_(std::make_shared<Weights>()) {
    loaded_->storage.push_back(file_);
    options_.check_finite = true;
  }

  TensorView Take(const std::string& name, const std::vector<int64_t>& shape) {
    const std::string where = fmt::format("{}: tensor {}", file_->path().string(), name);
    const auto found = file_->tensors().find(name);
    Check(found != file_->tensors().end(), "{} is missing", where);
    const TensorView& tensor = found->second;
    Check(tensor.shape == shape && tensor.dtype != DType::kFloat64,
          "{} is {} [{}], expected float32, float16 or bfloat16 [{}]", where, Name(tensor.dtype),
          fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    ++taken_;
    return LoadTensor(where, {static_cast<const std::byte*>(tensor.data), BlockTypeOf(tensor.dtype), shape}, true,
                      options_, *loaded_);
  }
  const SafetensorsFile& file() const { return *file_; }
  // The owner of the tensors, which keeps them alive.
  std::shared_ptr<const void> storage() const { return loaded_; }
  void RefuseLeftOver() const {
    const size_t tensors = file_->tensors().size() + file_->others().size();
    Check(taken_ == tensors, "{}: {} tensors, but the plan has {} of its own", file_->path().string(), tensors, taken_);
  }

 private:
  std::shared_ptr<const SafetensorsFile> file_;
  LoadOptions options_;
  std::shared_ptr<Weights> loaded_;
  size_t taken_ = 0;
};

// Reads the plan of a saved directory stage by stage.
class PlanReader {
 public:
  PlanReader(const AdaptedHeader& header, const fs::path& directory, const Weights& weights, const LoadOptions& options)
      : header_(header),
        directory_(directory),
        name_((directory / kAdaptedFile).string()),
        weights_(weights),
        options_(options) {}

  // The plan, without LoRA factors.
  DepthPlan Read() {
    const Json& stages = header_.json["plan"];
    const ModelConfig& config = weights_.config;
    Check(header_.standalone() || header_.layers == config.layers, "{}: layers is {}, but the base model has {}", name_,
          header_.layers, config.layers);
    Check(stages.is_array() && !stages.empty(), "{}: plan is not a list of stages", name_);
    DepthPlan plan;
    for (const Json& stage : stages) {
      Check(stage.is_object() && (stage.contains("block") || stage.contains("adapter")),
            "{}: stage {} is neither a block nor an adapter", name_, Shown(stage));
      if (stage.contains("block")) {
        plan.stages.emplace_back(Block(stage));
      } else {
        plan.stages.emplace_back(Adapter(stage));
      }
    }
    Check(plan.blocks() + std::ssize(header_.removed) == header_.layers,
          "{}: {} blocks in the plan and {} removed, of {} layers", name_, plan.blocks(), header_.removed.size(),
          header_.layers);
    plan.output = Output();
    if (adapters_) {
      RefuseLeftOver(*adapters_, sites_);
      CheckFile(kAdapterTensors, ChecksumOf(*adapters_));
    }
    if (own_) {
      own_->RefuseLeftOver();
      CheckFile(kOwnTensors, ChecksumOf(own_->file()));
    }
    return plan;
  }

  // The LoRA factors of that plan; null if it names none.
  std::shared_ptr<const Lora> ReadFactors(const DepthPlan& plan) const {
    if (factors_.empty()) return nullptr;
    auto lora = std::make_shared<Lora>(ReadLora(directory_ / kLoraDirectory, weights_.config, plan));
    std::set<std::pair<int64_t, std::string>> found;
    for (const LoraFactors& factors : lora->factors) found.emplace(factors.layer, factors.tensor->name);
    for (const auto& [layer, tensor] : factors_)
      Check(found.contains({layer, tensor}), "{}: no factors for {} of block {}, which {} names",
            (directory_ / kLoraDirectory / kLoraTensors).string(), tensor, layer, name_);
    Check(found == factors_, "{}: factors for {} tensors, but {} names {}",
          (directory_ / kLoraDirectory / kLoraTensors).string(), found.size(), name_, factors_.size());
    CheckFile(kLoraDirectory, Checksum(*lora));
    return lora;
  }

 private:
  // Refuses a file that is damaged, or was saved with another plan: a program that was killed may leave new files
  // beside an older shiftrt.json. A directory without checksums is taken as it is.
  void CheckFile(const char* file, const std::string& found) const {
    if (!header_.json.contains("checksums")) return;
    const Json& checksums = header_.json["checksums"];
    const Json expected = checksums.is_object() ? checksums.value(file, Json()) : Json();
    Check(expected == found,
          "{}: its checksum is {}, but {} has {}: it is damaged, was changed, or was not saved together with it. Save "
          "the model again, or remove checksums from that file to take it as it is",
          (directory_ / file).string(), found, name_, expected.is_null() ? "none for it" : Shown(expected));
  }

  BlockStage Block(const Json& stage) {
    RefuseOtherKeys(stage, {"block", "halves", "own", "lora"});
    const ModelConfig& config = weights_.config;
    BlockStage block = ReadBlock(stage, last_, header_, config.layers, name_);
    last_ = block.layer;
    for (const std::string& name : NameList(stage, "lora", KnownTensors(config, true), name_, header_.version))
      factors_.emplace(block.layer, name);
    const std::set<std::string> own = NameList(stage, "own", KnownTensors(config, false), name_, header_.version);
    if (own.empty()) return block;
    const auto tensors = std::make_shared<OwnBlock>(weights_, block);
    for (const BlockTensor& row : BlockTensors())
      if (own.contains(row.name))
        tensors->Replace(row.member, Own().Take(OwnName(block.layer, row), row.Shape(config)), Own().storage());
    block.own = OwnBlock::Share(tensors);
    return block;
  }

  AdapterStage Adapter(const Json& stage) {
    RefuseOtherKeys(stage, {"adapter"});
    if (!adapters_) adapters_ = std::make_unique<SafetensorsFile>(directory_ / kAdapterTensors);
    return {PartList(stage["adapter"], header_, name_), ReadLra(*adapters_, sites_++, weights_.config.hidden)};
  }

  std::shared_ptr<const OutputWeights> Output() {
    std::set<std::string> known = {kFinalNorm, kHead};
    if (!weights_.final_norm_bias.empty()) known.insert(kFinalNormBias);
    const std::set<std::string> own = NameList(header_.json, "output", known, name_, header_.version);
    if (own.empty()) return nullptr;
    const ModelConfig& config = weights_.config;
    const auto output = std::make_shared<OwnOutput>(weights_, DepthPlan());
    if (own.contains(kFinalNorm))
      output->Replace(&OutputWeights::final_norm, Own().Take(kFinalNorm, {config.hidden}), Own().storage());
    if (own.contains(kFinalNormBias))
      output->Replace(&OutputWeights::final_norm_bias, Own().Take(kFinalNormBias, {config.hidden}), Own().storage());
    if (own.contains(kHead))
      output->Replace(&OutputWeights::head, Own().Take(kHead, {config.vocab, config.hidden}), Own().storage());
    return OwnOutput::Share(output);
  }

  OwnReader& Own() {
    if (!own_) own_ = std::make_unique<OwnReader>(directory_ / kOwnTensors, options_);
    return *own_;
  }
  void RefuseOtherKeys(const Json& stage, const std::set<std::string>& known) const {
    for (const auto& [key, value] : stage.items())
      Check(known.contains(key), "{}: stage {} has more than {}", name_, Shown(stage), fmt::join(known, ", "));
  }

  const AdaptedHeader& header_;
  const fs::path& directory_;
  const std::string name_;
  const Weights& weights_;
  const LoadOptions options_;
  int64_t last_ = -1, sites_ = 0;  // the last block's layer; adapters so far
  std::unique_ptr<SafetensorsFile> adapters_;
  std::unique_ptr<OwnReader> own_;
  std::set<std::pair<int64_t, std::string>> factors_;  // the layers and tensors that must have factors
};

// The blocks of a saved plan, with the model's tensors.
DepthPlan KeptBlocks(const AdaptedHeader& header, int64_t layers, const std::string& name) {
  DepthPlan plan;
  int64_t last = -1;
  for (const Json& stage : header.json["plan"]) {
    if (!stage.is_object() || !stage.contains("block")) continue;
    plan.stages.emplace_back(ReadBlock(stage, last, header, layers, name));
    last = plan.stages.back().block().layer;
  }
  return plan;
}

void CheckFingerprint(const AdaptedHeader& header, const Weights& weights, const fs::path& file, const fs::path& base) {
  const std::string found = weights.Fingerprint();
  Check(found == header.fingerprint, "{}: made from a model with fingerprint {}, but {} has {}", file.string(),
        header.fingerprint, base.string(), found);
}

// The plan as shiftrt.json lists it, with the tensors of its adapters and those that replace the model's.
struct SavedPlan {
  int version = kFirstVersion;
  Json stages = Json::array(), output = Json::array();
  std::vector<NamedTensor> adapters, own;
};

// The names of the tensors of `block` that differ from the model's; the tensors are added to `tensors`.
Json OwnTensors(const Weights& weights, const BlockStage& block, std::vector<NamedTensor>& tensors) {
  Json names = Json::array();
  if (!block.own) return names;
  for (const BlockTensor& row : BlockTensors()) {
    const TensorView& tensor = (*block.own).*row.member;
    if (tensor.data == (weights.blocks[block.layer].*row.member).data) continue;
    names.push_back(row.name);
    tensors.push_back({OwnName(block.layer, row), tensor});
  }
  return names;
}

// Describes the plan for shiftrt.json. With `whole`, a checkpoint with the plan's tensors is written too, in which the
// kept blocks count from 0.
SavedPlan Describe(const Weights& weights, const DepthPlan& plan, const Lora* lora, bool whole) {
  SavedPlan saved;
  const auto list = [&](Json& object, const char* key, const Json& names) {
    if (names.empty()) return;
    object[key] = names;
    saved.version = kOwnVersion;
  };
  int64_t block = 0, site = 0;
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& kept) {
          Json described = {{"block", whole ? block++ : kept.layer}};
          if (kept.halves != Halves::kBoth) {
            described["halves"] = Name(kept.halves);
            saved.version = std::max(saved.version, kHalvesVersion);
          }
          if (!whole) list(described, "own", OwnTensors(weights, kept, saved.own));
          Json changed = Json::array();
          for (const LoraFactors& factors : lora != nullptr ? std::span(lora->factors) : std::span<const LoraFactors>())
            if (factors.layer == kept.layer) changed.push_back(factors.tensor->name);
          list(described, "lora", changed);
          saved.stages.push_back(std::move(described));
        },
        [&](const AdapterStage& adapter) {
          saved.stages.push_back({{"adapter", adapter.parts}});
          const std::string prefix = fmt::format("site.{}.", site++);
          if (adapter.lra->low_rank()) {
            saved.adapters.push_back({prefix + "P", View(adapter.lra->p)});
            saved.adapters.push_back({prefix + "Q", View(adapter.lra->q)});
          } else {
            saved.adapters.push_back({prefix + "A", View(adapter.lra->a)});
          }
          saved.adapters.push_back({prefix + "b", View(adapter.lra->b, /*vector=*/true)});
        });
  }
  if (whole || !plan.output) return saved;
  const auto add = [&](const char* name, const TensorView& tensor, const TensorView& of_model) {
    if (tensor.data == of_model.data) return;
    saved.output.push_back(name);
    saved.own.push_back({name, tensor});
    saved.version = kOwnVersion;
  };
  add(kFinalNorm, plan.output->final_norm, weights.final_norm);
  add(kFinalNormBias, plan.output->final_norm_bias, weights.final_norm_bias);
  add(kHead, plan.output->head, weights.head);
  return saved;
}

// Throws Error for a block whose set of tensors is not that of the family: when the file is read, it could not be told
// from a mistake. Without `whole`, the tensors of a half that does not run are not written, and may be missing.
void CheckPlaces(const Weights& weights, const DepthPlan& plan, bool whole, const fs::path& directory) {
  for (const BlockStage* block : plan.Blocks())
    for (const BlockTensor& row : BlockTensors())
      if (whole || Reads(block->halves, row))
        Check((TensorsOf(weights, *block).*row.member).empty() == row.Shape(weights.config).empty(),
              "{}: block {} has {} {}, unlike the blocks of the family {}", directory.string(), block->layer,
              row.Shape(weights.config).empty() ? "a" : "no", row.name, weights.config.family);
}

}  // namespace

void SaveAdapted(const Model& model, const DepthPlan& plan, const Provenance& provenance, bool with_weights,
                 const fs::path& directory, const Lora* lora) {
  const Weights& weights = *model.weights;
  AtomicDirectory out(directory);
  Check(!fs::exists(directory / "config.json") || !fs::equivalent(directory, model.directory),
        "{}: this is the model itself; save somewhere else", directory.string());
  Check(!with_weights || plan.blocks() > 0, "{}: a model without blocks cannot be saved with its weights",
        directory.string());
  CheckPlaces(weights, plan, with_weights, directory);
  std::string fingerprint;
  if (with_weights) {
    const Weights kept = KeptWeights(weights, plan);
    NoProgress quiet;
    WriteCheckpoint(StoredTensors(kept), kOneFile, out, quiet);
    const Json config = PlanConfig(model, plan);
    const bool all = IsStock(plan) && lora == nullptr;
    out.Create("config.json").Write((all ? config : Marked(config)).dump(2) + "\n");
    CopyCompanions(model, out);
    fingerprint = kept.Fingerprint();
  } else {
    fingerprint = weights.Fingerprint();
  }
  const std::string base = fs::absolute(model.directory).lexically_normal().string();
  const SavedPlan saved = Describe(weights, plan, lora, with_weights);
  WriteSafetensors(out.Create(kAdapterTensors), saved.adapters, {{"format", "shiftrt"}});
  if (!saved.own.empty()) WriteSafetensors(out.Create(kOwnTensors), saved.own, {{"format", "shiftrt"}});
  if (lora != nullptr)
    WriteLora(*lora, weights.config, plan, plan == DepthPlan::Original(weights.config.layers) ? base : "", out);
  // This file is written last, so that a directory that has it is complete. A directory with its own weights names
  // itself as the base.
  Json json = {{"version", saved.version},
               {"base", with_weights ? kStandalone : base},
               {"fingerprint", fingerprint},
               {"layers", weights.config.layers},
               {"removed", plan.RemovedLayers(weights.config.layers)},
               {"plan", saved.stages},
               {"provenance", ProvenanceJson(provenance)}};
  if (!saved.output.empty()) json["output"] = saved.output;
  // An object from the start: a null that becomes one is left half made where there is no memory.
  Json checksums = Json::object();
  checksums[kAdapterTensors] = ChecksumOf("", saved.adapters);
  if (!saved.own.empty()) checksums[kOwnTensors] = ChecksumOf("", saved.own);
  if (lora != nullptr) checksums[kLoraDirectory] = Checksum(*lora);
  json["checksums"] = std::move(checksums);
  out.Create(kAdaptedFile).Write(json.dump(2) + "\n");
  out.Commit();
}

std::string MissingOfSaved(const fs::path& directory) {
  const AdaptedHeader header = ReadHeader(directory / kAdaptedFile);
  if (header.standalone())
    if (std::string missing = MissingOfModel(directory); !missing.empty()) return missing;
  std::vector<std::string> files = {kAdapterTensors};
  if (const Json& sums = header.json.value("checksums", Json()); sums.is_object()) {
    if (sums.contains(kOwnTensors)) files.emplace_back(kOwnTensors);
    if (sums.contains(kLoraDirectory))
      for (const char* file : {kLoraConfig, kLoraTensors}) files.push_back(fmt::format("{}/{}", kLoraDirectory, file));
  }
  for (const std::string& file : files)
    if (!fs::exists(directory / file)) return file;
  return "";
}

fs::path AdaptedBase(const fs::path& directory) {
  const AdaptedHeader header = ReadHeader(directory / kAdaptedFile);
  return header.standalone() ? directory : fs::path(header.base);
}

DepthPlan OpenSavedPlan(const fs::path& directory, const Weights& weights) {
  const fs::path file = directory / kAdaptedFile;
  const AdaptedHeader header = ReadHeader(file);
  CheckFingerprint(header, weights, file, "the model that is open");
  PlanReader reader(header, directory, weights, {});
  DepthPlan plan = reader.Read();
  const std::shared_ptr<const Lora> lora = reader.ReadFactors(plan);
  if (lora) weights.RequireWhole(fmt::format("{}: merging its LoRA factors", file.string()));
  return lora ? MergeLora(weights, plan, *lora) : plan;
}

bool ReplaceProvenance(const fs::path& directory, const Provenance& before, const Provenance& after) {
  const DirectoryLock lock(directory);
  Json json = ReadHeader(directory / kAdaptedFile).json;
  if (json.value("provenance", Json()).dump() != ProvenanceJson(before).dump()) return false;
  json["provenance"] = ProvenanceJson(after);
  WriteFile(directory / kAdaptedFile, json.dump(2) + "\n");
  return true;
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
  const ModelConfig base = ConfigFromJson(BaseConfig(model.directory), config);
  LoadOptions with_plan = options;
  if (options.split.processes > 1)
    with_plan.split.plan = std::make_shared<const DepthPlan>(KeptBlocks(header, base.layers, file.string()));
  model.weights = LoadWeights(model.directory, base, with_plan);
  CheckFingerprint(header, *model.weights, file, model.directory);
  PlanReader reader(header, directory, *model.weights, options);
  model.plan = reader.Read();
  if (options.merge_lora) model.lora = reader.ReadFactors(model.plan);
  if (model.lora) model.weights->RequireWhole(fmt::format("{}: merging its LoRA factors", file.string()));
  if (model.lora) {
    model.unmerged = std::move(model.plan);
    model.plan = MergeLora(*model.weights, *model.unmerged, *model.lora);
  }
  model.removed = header.removed;
  model.provenance = ReadProvenance(header.json.value("provenance", Json()));
  return model;
}

}  // namespace shiftrt
