// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <set>

#include "models/block_tensors.h"
#include "models/checkpoint.h"
#include "models/gguf.h"
#include "runtime/check.h"
#include "runtime/parse.h"

namespace shiftrt {

namespace {

// Opens a GGUF file. Tensors outside the blocks are taken by the names of Hugging Face checkpoints.
class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(const std::filesystem::path& path, const ModelConfig& config)
      : file_(std::make_shared<GgufFile>(path)),
        config_(config),
        architecture_(*FindGgufArchitecture(file_->metadata().Text("general.architecture"))),
        blocks_(GgufTensorsOf(architecture_, config)) {
    if (!architecture_.by_layer) return;
    const GgufLayers layers = ReadGgufLayers(file_->contents(), architecture_);
    numbers_ = layers.BlockLayers();
    halves_ = layers.BlockHalves();
    units_ = layers.BlockUnits();
    used_ = layers.OtherTensors();
  }

  std::vector<CheckpointTensor> BlockTensors(const ModelConfig& of_block) const override {
    return GgufTensorsOf(architecture_, of_block);
  }
  std::string BlockPrefix(int64_t layer) const override {
    return fmt::format("blk.{}.", numbers_.empty() ? layer : numbers_[layer]);
  }
  Halves HalvesOf(int64_t layer) const override { return halves_.empty() ? Halves::kBoth : halves_[layer]; }

  int64_t MlpUnitsOf(int64_t layer) const override { return units_.empty() ? 0 : units_[layer]; }

  FileTensor Take(const std::string& name, const std::vector<int64_t>& shape) override {
    const std::string stored = StoredName(name);
    const BlockTensor* const row = RowOf(stored);
    const std::string where = file_->path().string();
    if (row != nullptr && row->IsNumber()) return NumberOf(*row, stored);
    const auto found = file_->tensors().find(stored);
    Check(found != file_->tensors().end(), "{}: tensor {} is missing", where, stored);
    const GgufTensor& tensor = found->second;
    Check(tensor.shape == shape, "{}: tensor {} has shape [{}], expected [{}]", where, stored,
          fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    Check(tensor.type->decode != nullptr, "{}: tensor {} is of type {}, which is not supported ({} are)", where, stored,
          tensor.type->name, DecodableTypes());
    used_.insert(stored);
    FileTensor taken{tensor.data, static_cast<BlockType>(tensor.type->code), tensor.shape};
    if (row == nullptr) {
      if (stored == architecture_.final_norm) taken.offset = -config_.block.norm_offset;
      return taken;
    }
    if (row->HasNormOffset()) taken.offset = -config_.block.norm_offset;
    if (row->member == &BlockWeights::delta_a_log) {
      RefuseGrowth(tensor, stored);
      taken.map = DecayFromGguf;
    }
    Check(shape.size() > 1 || PlainType(taken.type), "{}: tensor {} is a vector of type {}, expected F32", where,
          stored, tensor.type->name);
    return taken;
  }

  // Converters write the head of some models twice, as the embedding table and as a tensor of its own.
  bool HasTiedHead(bool config) const override {
    const auto embedding = file_->tensors().find(kGgufEmbedding), head = file_->tensors().find(kGgufHead);
    if (config || architecture_.head != GgufArchitecture::Head::kAny || head == file_->tensors().end() ||
        embedding == file_->tensors().end())
      return config;
    const GgufTensor &a = embedding->second, &b = head->second;
    return a.type == b.type && a.shape == b.shape && std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes)) == 0;
  }

  void RefuseLeftOver(bool tied_head, const LoadOptions& /*options*/) const override {
    for (const auto& [name, tensor] : file_->tensors())
      Check(used_.contains(name) || IsFactors(name) || (tied_head && name == kGgufHead) || OfPrediction(name),
            "{}: tensor {} is not one this configuration has", file_->path().string(), name);
  }

  std::vector<std::shared_ptr<const void>> Storage() const override { return {file_}; }

 private:
  static bool IsFactors(std::string_view name) {
    return name == kGgufRopeFactors || name == kGgufShortFactors || name == kGgufLongFactors;
  }
  // The number of a block, which is an element of a list of the metadata.
  FileTensor NumberOf(const BlockTensor& row, std::string_view stored) const {
    const GgufMetadata& metadata = file_->metadata();
    const char* const key = GgufName(row);
    const std::vector<float> numbers = metadata.Numbers(key);
    int64_t layer = 0;
    ParseNumber(stored.substr(4, stored.find('.', 4) - 4), &layer);
    Check(layer < std::ssize(numbers), "{}: {} has {} numbers for {} blocks", file_->path().string(), key,
          numbers.size(), config_.layers);
    return {metadata.values().find(key)->second.bytes.data() + layer * sizeof(float), BlockType::kF32, {1}};
  }
  // Decays are the logarithms of factors below 1.
  void RefuseGrowth(const GgufTensor& tensor, const std::string& name) const {
    const BlockTraits& type = *tensor.type;
    std::vector<float> values(tensor.shape[0]);
    type.decode(tensor.data, tensor.shape[0] / type.elements, values.data());
    for (const float value : values)
      Check(value < 0, "{}: tensor {} has {}, expected numbers below 0", file_->path().string(), name, value);
  }
  // Blocks after the model's predict several tokens at once, as "mtp." in Hugging Face checkpoints.
  bool OfPrediction(const std::string& name) const {
    const std::string key = fmt::format("{}.{}", architecture_.name, kGgufPredictionLayers);
    const int64_t blocks = architecture_.gated_delta ? file_->metadata().Integer(key, 0, 1 << 20, 0) : 0;
    for (int64_t block = config_.layers; block < config_.layers + blocks; ++block)
      if (name.starts_with(fmt::format("blk.{}.", block))) return true;
    return false;
  }
  std::string StoredName(const std::string& name) const {
    if (name == "model.embed_tokens.weight") return kGgufEmbedding;
    if (name == "model.norm.weight") return architecture_.final_norm;
    if (name == "model.norm.bias") return kGgufFinalNormBias;
    return name == "lm_head.weight" ? kGgufHead : name;
  }
  // The row of a tensor of a block, or the first of several rows; null for another tensor.
  const BlockTensor* RowOf(std::string_view name) const {
    for (const CheckpointTensor& tensor : blocks_)
      if (name.starts_with("blk.") && name.substr(name.find('.', 4) + 1) == tensor.name) return tensor.parts.front();
    return nullptr;
  }

  std::shared_ptr<GgufFile> file_;
  const ModelConfig& config_;
  const GgufArchitecture& architecture_;
  std::vector<CheckpointTensor> blocks_;
  // The number of each block in a file whose layers differ, its units, and the halves that run.
  std::vector<int64_t> numbers_, units_;
  std::vector<Halves> halves_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace

std::unique_ptr<Checkpoint> OpenGguf(const std::filesystem::path& file, const ModelConfig& config) {
  return std::make_unique<GgufCheckpoint>(file, config);
}

}  // namespace shiftrt
