// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "models/checkpoint.h"
#include "models/hf_lra.h"
#include "models/layouts.h"
#include "models/packed_tensor.h"
#include "runtime/check.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kHeadTensor = "lm_head.weight", kEmbeddingTensor = "model.embed_tokens.weight",
                           kHeadModule = "lm_head.";

// True for buffers that old exporters wrote and that are computed from the configuration instead, and for the blocks
// that predict several tokens at once, which transformers leaves out, too.
bool Ignorable(std::string_view name) {
  if (name.starts_with("mtp.")) return true;
  for (const std::string_view end :
       {"rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", ".position_ids", ".causal_mask"})
    if (name.ends_with(end)) return true;
  return name == "position_ids" || name == "causal_mask";
}

// Reads every file of a checkpoint and records which file holds which tensor.
class SafetensorsCheckpoint final : public Checkpoint {
 public:
  SafetensorsCheckpoint(const std::filesystem::path& directory, const ModelConfig& config)
      : directory_(directory), final_norm_(FinalNormName(config)), quantisation_(config.quantisation) {
    const auto index = directory / "model.safetensors.index.json";
    if (Exists(directory / "model.safetensors")) {
      tensors_ = TensorsOf(Open("model.safetensors"));
      Rename();
      return;
    }
    Check(Exists(index), "{}: neither model.safetensors nor model.safetensors.index.json is there{}",
          directory.string(), LayoutWithoutWeights(directory));
    ReadIndex(index);
    Rename();
  }

  std::vector<CheckpointTensor> BlockTensors(const ModelConfig& of_block) const override {
    return experts_together_ ? CheckpointTensorsWithExpertsTogether(of_block) : CheckpointTensors(of_block);
  }
  std::string BlockPrefix(int64_t layer) const override { return fmt::format("model.layers.{}.", layer); }

  FileTensor Take(const std::string& in_model, const std::vector<int64_t>& shape) override {
    const std::string& name = in_model == "model.norm.weight" ? final_norm_ : in_model;
    if (auto packed = FindPacked(quantisation_, tensors_, directory_.string(), name, shape)) {
      for (const PackedPart& part : packed->parts) used_.insert(part.name);
      const BlockType type = packed->mx_blocks ? BlockType::kMXFP4 : ExpandedBlocks();
      return {.data = packed->codes.data, .type = type, .shape = shape, .packed = packed};
    }
    const auto found = tensors_.find(name);
    Check(found != tensors_.end(), "{}: tensor {} is missing{}", directory_.string(), name,
          Advice(name, shape.size() >= 2));
    const RawTensor& tensor = found->second;
    // Some programs write a number as a vector.
    const bool number = shape.empty() && tensor.shape == std::vector<int64_t>{1};
    Check(tensor.shape == shape || number, "{}: tensor {} has shape [{}], expected [{}]", directory_.string(), name,
          fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    const std::optional<DType> type = PlainTypeOf(tensor);
    Check(type.has_value(), "{}: tensor {} is of type {}, expected F32, F16 or BF16", directory_.string(), name,
          tensor.type);
    Check(*type != DType::kFloat64, "{}: tensor {} is float64, which is not supported", directory_.string(), name);
    used_.insert(name);
    return {tensor.bytes.data(), BlockTypeOf(*type), tensor.shape};
  }

  // As in transformers 5, a stored head that differs from the embedding table counts for more than tie_word_embeddings.
  bool HasTiedHead(bool config) const override {
    const auto embedding = tensors_.find("model.embed_tokens.weight"), head = tensors_.find("lm_head.weight");
    if (!config || embedding == tensors_.end()) return config;
    if (head == tensors_.end())
      return !FindPacked(quantisation_, tensors_, directory_.string(), "lm_head.weight", embedding->second.shape);
    const RawTensor &a = embedding->second, &b = head->second;
    return a.type == b.type && a.shape == b.shape && std::ranges::equal(a.bytes, b.bytes);
  }

  void RefuseLeftOver(bool tied_head, const LoadOptions& options) const override {
    for (const auto& [name, tensor] : tensors_) {
      if ((options.has_adapters && name.find(kHfLraTensors) != name.npos) || options.others.contains(name)) continue;
      if (used_.contains(name) || Ignorable(name) || (tied_head && name == "lm_head.weight")) continue;
      if (quantisation_.any() && IsOfActivations(name)) continue;
      Fail("{}: tensor {} is not one this configuration has", directory_.string(), name);
    }
  }

  std::vector<std::shared_ptr<const void>> Storage() const override {
    std::vector<std::shared_ptr<const void>> storage;
    for (const auto& [name, file] : files_) storage.push_back(file);
    return storage;
  }

 private:
  const SafetensorsFile& Open(const std::string& name) {
    auto& file = files_[name];
    if (file) return *file;
    file = std::make_shared<SafetensorsFile>(directory_ / name);
    for (const auto& [stored, tensor] : file->others())  // quantised weights, or no weights at all
      Check(quantisation_.any() || Ignorable(stored),
            "{}: tensor {} is of type {}, expected F32, F16 or BF16, because config.json has no quantization_config",
            file->path().string(), stored, tensor.type);
    return *file;
  }

  // The tensors of a file. Those of other types belong to quantised matrices.
  std::map<std::string, RawTensor> TensorsOf(const SafetensorsFile& file) const {
    std::map<std::string, RawTensor> tensors;
    if (quantisation_.any()) tensors.insert(file.others().begin(), file.others().end());
    for (const auto& [name, tensor] : file.tensors()) tensors[name] = RawOf(tensor);
    return tensors;
  }

  // The shards count, and not where the index says that a tensor is: transformers loads all tensors of all shards.
  void ReadIndex(const std::filesystem::path& index) {
    const Json json = ParseJson(ReadFile(index, kMaxIndexBytes), index.string());
    Check(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
          "{}: weight_map is missing", index.string());
    const Json& map = json["weight_map"];
    for (const auto& [name, value] : map.items()) {
      Check(value.is_string(), "{}: the shard of tensor {} is not a file name", index.string(), name);
      const auto& shard = value.get_ref<const std::string&>();
      constexpr std::string_view kSeparators("/\\\0", 3);
      Check(!shard.empty() && shard.find_first_of(kSeparators) == std::string::npos && shard != "." && shard != "..",
            "{}: the shard of tensor {} is {}, not the name of a file in the directory", index.string(), name,
            Shown(value));
      Open(shard);
    }
    TakeShards();
    for (const auto& [name, value] : map.items())  // a head that is the embedding table is listed and not stored
      Check(tensors_.contains(name) || Ignorable(name) || name == kHeadTensor,
            "{}: tensor {} is in no shard, not even in {} as the index says", index.string(), name,
            value.get_ref<const std::string&>());
    for (const auto& [name, tensor] : tensors_)
      Check(map.contains(name) || Ignorable(name) || name == kHeadTensor, "{}: tensor {} is in a shard and not listed",
            index.string(), name);
  }

  // A tensor in two shards makes the checkpoint invalid.
  void TakeShards() {
    std::map<std::string, std::string_view> owner;
    for (const auto& [shard, file] : files_) {
      for (auto& [name, tensor] : TensorsOf(*file)) {
        const auto [at, fresh] = owner.emplace(name, shard);
        Check(fresh || Ignorable(name), "{}: tensor {} is in {} and in {}", directory_.string(), name, at->second,
              shard);
        tensors_[name] = tensor;
      }
    }
  }

  // The type of the matrices that are not quantised, which is that of the embedding table, if it has 16 bits: a GPU
  // takes matrices of one type.
  BlockType ExpandedBlocks() const {
    const auto embedding = tensors_.find(std::string(kEmbeddingTensor));
    return embedding != tensors_.end() && embedding->second.type == "F16" ? BlockType::kF16 : BlockType::kBF16;
  }

  // Gives the tensors of a model that was saved from its base class, without a head, the names that they have in a
  // whole model.
  void AddPrefix() {
    constexpr std::string_view kPrefix = "model.";
    if (tensors_.contains(std::string(kEmbeddingTensor)) ||
        !tensors_.contains(std::string(kEmbeddingTensor.substr(kPrefix.size()))))
      return;
    std::map<std::string, RawTensor> named;
    for (const auto& [name, tensor] : tensors_)
      named[name.starts_with(kHeadModule) ? name : std::string(kPrefix) + name] = tensor;
    tensors_ = std::move(named);
  }

  // Why a tensor may be missing, for the message that says so.
  std::string Advice(const std::string& name, bool matrix) const {
    if (Exists(directory_ / "model.safetensors") && Exists(directory_ / "model.safetensors.index.json"))
      return "; model.safetensors is read, and the shards of model.safetensors.index.json next to it are not: move "
             "away "
             "the one that is not the model";
    if (matrix && quantisation_.any() && CodesOf(quantisation_, name) != name)
      return fmt::format("; the quantised form, {} ({}), is missing too", CodesOf(quantisation_, name),
                         quantisation_.Name());
    if (name == kHeadTensor)
      return "; if the head of this model is its embedding table, config.json needs \"tie_word_embeddings\": true";
    return "";
  }

  void Rename() {
    LeaveTextModel();
    AddPrefix();
    experts_together_ =
        std::ranges::any_of(tensors_, [](const auto& tensor) { return tensor.first.ends_with(kExpertsTogether); });
  }

  // Leaves only the text model's tensors of a model of text and images, under the names that they have in a directory
  // of their own. transformers has written them as language_model.model.X and, later, as model.language_model.X.
  void LeaveTextModel() {
    constexpr std::string_view kBefore = "language_model.", kInside = "model.language_model.";
    const auto begins = [](std::string_view prefix) {
      return [prefix](const auto& entry) { return entry.first.starts_with(prefix); };
    };
    const bool before = std::any_of(tensors_.begin(), tensors_.end(), begins(kBefore));
    if (!before && std::none_of(tensors_.begin(), tensors_.end(), begins(kInside))) return;
    std::map<std::string, RawTensor> text;
    for (const auto& [name, tensor] : tensors_) {
      if (before && name.starts_with(kBefore)) {
        text[name.substr(kBefore.size())] = tensor;
      } else if (!before && name.starts_with(kInside)) {
        text["model." + name.substr(kInside.size())] = tensor;
      } else if (name.starts_with(kHeadModule)) {
        text[name] = tensor;
      } else {
        const bool of_images = name.find("vision_tower.") != name.npos ||
                               name.find("multi_modal_projector.") != name.npos || name.starts_with("model.visual.") ||
                               name.starts_with("visual.");
        Check(of_images || Ignorable(name), "{}: tensor {} is of neither the text model nor the images",
              directory_.string(), name);
      }
    }
    tensors_ = std::move(text);
  }

  static constexpr uint64_t kMaxIndexBytes = 1 << 26;

  std::filesystem::path directory_;
  std::string final_norm_;
  Quantisation quantisation_;
  std::map<std::string, std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, RawTensor> tensors_;
  std::set<std::string> used_;
  bool experts_together_ = false;
};

}  // namespace

std::unique_ptr<Checkpoint> OpenSafetensors(const std::filesystem::path& directory, const ModelConfig& config) {
  return std::make_unique<SafetensorsCheckpoint>(directory, config);
}

}  // namespace shiftrt
