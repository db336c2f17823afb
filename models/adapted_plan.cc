// SPDX-License-Identifier: Apache-2.0
#include "models/adapted_plan.h"

#include <cmath>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "models/adapted.h"
#include "models/checkpoint.h"
#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/gguf.h"
#include "runtime/json.h"
#include "runtime/safetensors.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

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

std::shared_ptr<const Lra> ReadLra(const SafetensorsFile& file, int64_t site, int64_t hidden, int version) {
  const std::string prefix = fmt::format("site.{}.", site);
  Lra lra;
  lra.b = ReadMatrix(file, prefix + "b", 1, hidden);
  if (file.tensors().contains(prefix + "A")) {
    Check(!file.tensors().contains(prefix + "P") && !file.tensors().contains(prefix + "Q"),
          "{}: {}A stands with {}P or {}Q", file.path().string(), prefix, prefix, prefix);
    lra.a = ReadMatrix(file, prefix + "A", hidden, hidden);
  } else {
    lra.p = ReadMatrix(file, prefix + "P", hidden, 0);
    lra.q = ReadMatrix(file, prefix + "Q", 0, hidden);
    Check(lra.q.rows() == lra.p.cols(), "{}: tensor {}Q has {} rows, and {}P has {} columns", file.path().string(),
          prefix, lra.q.rows(), prefix, lra.p.cols());  // 0: a bias alone
  }
  const std::string norm = prefix + "norm";
  if (!file.tensors().contains(norm)) return std::make_shared<const Lra>(std::move(lra));
  Check(version >= kNormsVersion, "{}: tensor {} is there, which a file of version {} cannot have",
        file.path().string(), norm, version);
  lra.norm = ReadMatrix(file, norm, 1, hidden);
  return std::make_shared<const Lra>(std::move(lra));
}

// The checksum of a file of tensors, which shiftrt.json holds.
std::string ChecksumOf(const SafetensorsFile& file) { return ChecksumOf("", file.tensors()); }

// Throws Error for a tensor that belongs to none of the first `sites` sites.
void RefuseLeftOver(const SafetensorsFile& file, int64_t sites) {
  size_t expected = 0;
  for (int64_t site = 0; site < sites; ++site)
    expected += (file.tensors().contains(fmt::format("site.{}.A", site)) ? 2 : 3) +
                (file.tensors().contains(fmt::format("site.{}.norm", site)) ? 1 : 0);
  Check(file.tensors().size() == expected && file.others().empty(),
        "{}: {} tensors, but the plan's {} adapters have {}", file.path().string(),
        file.tensors().size() + file.others().size(), sites, expected);
}

// The names of all tensors of a block, or only of its matrices.
std::set<std::string> KnownTensors(const ModelConfig& config, bool matrices) {
  std::set<std::string> names;
  for (const BlockTensor* row : AllTensors(config))
    if (!matrices || row->kind == BlockTensor::Kind::kMatrix) names.insert(row->name);
  return names;
}

// Reads the tensors of a plan's own from their files, in the type that the model is loaded in. Quantised ones are in a
// file of their own.
class OwnReader {
 public:
  // `files`: kOwnTensors, kOwnQuantised, or both.
  OwnReader(const fs::path& directory, const std::set<std::string>& files, const LoadOptions& options)
      : path_((directory / *files.rbegin()).string()), options_(options), loaded_(std::make_shared<Weights>()) {
    if (files.contains(kOwnTensors))
      loaded_->storage.push_back(file_ = std::make_shared<SafetensorsFile>(directory / kOwnTensors));
    if (files.contains(kOwnQuantised))
      loaded_->storage.push_back(quantised_ = std::make_shared<GgufFile>(directory / kOwnQuantised));
    options_.check_finite = true;
  }

  TensorView Take(const std::string& name, const std::vector<int64_t>& shape) {
    if (quantised_)
      if (const auto found = quantised_->tensors().find(name); found != quantised_->tensors().end())
        return TakeQuantised(fmt::format("{}: tensor {}", quantised_->path().string(), name), found->second, shape);
    const std::string where = fmt::format("{}: tensor {}", path_, name);
    Check(file_ != nullptr, "{} is missing", where);
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
  // The owner of the tensors, which keeps them alive.
  std::shared_ptr<const void> storage() const { return loaded_; }
  void RefuseLeftOver() const {
    size_t tensors = quantised_ ? quantised_->tensors().size() : 0;
    if (file_) tensors += file_->tensors().size() + file_->others().size();
    Check(taken_ == tensors, "{}: {} tensors, but the plan has {} of its own", path_, tensors, taken_);
  }
  // Calls visit(file, checksum) for each file.
  template <typename Visit>
  void ForEachChecksum(const Visit& visit) const {
    if (file_) visit(kOwnTensors, ChecksumOf(*file_));
    if (!quantised_) return;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : quantised_->tensors()) {
      const auto type = static_cast<BlockType>(tensor.type->code);
      Check(!PlainType(type) && tensor.type->decode != nullptr, "{}: tensor {} is {}, expected a quantised type",
            quantised_->path().string(), name, tensor.type->name);
      tensors.push_back({name, {tensor.data, DTypeOfBlocks(type), tensor.shape}});
    }
    visit(kOwnQuantised, shiftrt::ChecksumOf("", std::move(tensors)));
  }

 private:
  TensorView TakeQuantised(const std::string& where, const GgufTensor& tensor, const std::vector<int64_t>& shape) {
    const auto type = static_cast<BlockType>(tensor.type->code);
    Check(tensor.shape == shape && tensor.type->decode != nullptr && !PlainType(type),
          "{} is {} [{}], expected a quantised type [{}]", where, tensor.type->name, fmt::join(tensor.shape, ", "),
          fmt::join(shape, ", "));
    ++taken_;
    return LoadTensor(where, {tensor.data, type, shape}, true, options_, *loaded_);
  }

  const std::string path_;                       // for errors
  std::shared_ptr<const SafetensorsFile> file_;  // or null
  std::shared_ptr<const GgufFile> quantised_;    // or null
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
    Check(header_.renumbered || header_.layers == config.layers, "{}: layers is {}, but the base model has {}", name_,
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
      own_->ForEachChecksum([&](const char* file, const std::string& found) { CheckFile(file, found); });
    }
    return plan;
  }

  // The LoRA factors of that plan; null if it names none.
  std::shared_ptr<const Lora> ReadFactors(const DepthPlan& plan) const {
    if (factors_.empty()) return nullptr;
    auto lora = std::make_shared<Lora>(ReadLora(directory_ / kLoraDirectory, weights_, plan));
    std::set<std::pair<int64_t, std::string>> found;
    Check(lora->embedding.empty() && lora->head.empty(), "{}: has a change of the embedding table or the head",
          (directory_ / kLoraDirectory).string());
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
  // next to an older shiftrt.json. A directory without checksums is taken as it is.
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
    RefuseOtherKeys(stage, {"block", "halves", "units", "own", "lora"});
    BlockStage block = ReadBlock(stage, last_, header_, weights_.config.layers, name_);
    last_ = block.layer;
    const ModelConfig config = ConfigOfBlock(weights_.config, block.layer, 0);
    for (const std::string& name : ReadNames(stage, "lora", KnownTensors(config, true), header_, name_))
      factors_.emplace(block.layer, name);
    const std::set<std::string> own = ReadNames(stage, "own", KnownTensors(config, false), header_, name_);
    const int64_t said = ReadUnits(stage, header_, name_), of_model = MlpUnits(weights_.blocks[block.layer]),
                  units = said > 0 ? said : of_model;
    const ModelConfig of_block = ConfigOfBlock(weights_.config, block.layer, units);
    if (units != of_model)
      for (const BlockTensor& row : BlockTensors())
        Check(own.contains(row.name) || row.Shape(of_block, units) == row.Shape(of_block, of_model),
              "{}: the MLP of block {} has {} units, expected {}, because {} is the base model's", name_, block.layer,
              units, of_model, row.name);
    if (own.empty()) return block;
    const auto tensors = std::make_shared<OwnBlock>(weights_, block);
    for (const BlockTensor* row : AllTensors(of_block))
      if (own.contains(row->name))
        tensors->Replace(*row, Own().Take(OwnName(block.layer, *row), row->Shape(of_block, units)), Own().storage());
    block.own = OwnBlock::Share(tensors);
    return block;
  }

  AdapterStage Adapter(const Json& stage) {
    RefuseOtherKeys(stage, {"adapter"});
    if (!adapters_) adapters_ = std::make_unique<SafetensorsFile>(directory_ / kAdapterTensors);
    return {ReadParts(stage["adapter"], header_, name_),
            ReadLra(*adapters_, sites_++, weights_.config.hidden, header_.version)};
  }

  std::shared_ptr<const OutputWeights> Output() {
    std::set<std::string> known = {kFinalNorm, kHead, kTable};
    if (!weights_.final_norm_bias.empty()) known.insert(kFinalNormBias);
    const std::set<std::string> own = ReadNames(header_.json, "output", known, header_, name_);
    if (own.empty()) return nullptr;
    const ModelConfig& config = weights_.config;
    const auto output = std::make_shared<OwnOutput>(weights_, DepthPlan());
    if (own.contains(kFinalNorm))
      output->Replace(&OutputWeights::final_norm, Own().Take(kFinalNorm, {config.hidden}), Own().storage());
    if (own.contains(kFinalNormBias))
      output->Replace(&OutputWeights::final_norm_bias, Own().Take(kFinalNormBias, {config.hidden}), Own().storage());
    if (own.contains(kHead))
      output->Replace(&OutputWeights::head, Own().Take(kHead, {config.vocab, config.hidden}), Own().storage());
    if (own.contains(kTable)) {
      Check(!config.tied_head || own.contains(kHead), "{}: output has {} without {}", name_, kTable, kHead);
      const TensorView table =
          config.tied_head ? output->weights().head : Own().Take(kTable, {config.vocab, config.hidden});
      output->Replace(&OutputWeights::table, table, Own().storage());
    }
    return OwnOutput::Share(output);
  }

  OwnReader& Own() {
    if (!own_) own_ = std::make_unique<OwnReader>(directory_, OwnFiles(), options_);
    return *own_;
  }
  // The files that have tensors of the plan's own.
  std::set<std::string> OwnFiles() const {
    std::set<std::string> files;
    if (header_.version >= kQuantisedVersion && Exists(directory_ / kOwnQuantised)) files.insert(kOwnQuantised);
    if (header_.version == kQuantisedVersion) files.insert(kOwnQuantised);  // it has one, or is damaged
    if (files.empty() || Exists(directory_ / kOwnTensors)) files.insert(kOwnTensors);
    return files;
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

}  // namespace

AdaptedPlan ReadPlan(const AdaptedHeader& header, const fs::path& directory, const Weights& weights,
                     const LoadOptions& options) {
  PlanReader reader(header, directory, weights, options);
  AdaptedPlan read = {reader.Read(), nullptr};
  if (options.merge_lora) read.lora = reader.ReadFactors(read.plan);
  return read;
}

}  // namespace shiftrt
