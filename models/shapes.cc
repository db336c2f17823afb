// SPDX-License-Identifier: Apache-2.0
#include "models/shapes.h"

#include <nlohmann/json.hpp>

#include "models/adapted.h"
#include "models/block_tensors.h"
#include "models/checkpoint.h"
#include "models/families.h"
#include "models/gguf.h"
#include "models/saved_config.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/host_memory.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// With this limit, counts of bytes fit in 64 bits.
constexpr double kMostParameters = 1e17;

// The checkpoint of a config.json alone: all tensors have the type that it names, and none has data.
class DeclaredCheckpoint final : public Checkpoint {
 public:
  explicit DeclaredCheckpoint(BlockType type) : type_(type) {}
  std::vector<CheckpointTensor> BlockTensors(const ModelConfig& of_block) const override {
    return CheckpointTensors(of_block);
  }
  std::string BlockPrefix(int64_t layer) const override { return fmt::format("model.layers.{}.", layer); }
  FileTensor Take(const std::string&, const std::vector<int64_t>& shape) override { return {nullptr, type_, shape}; }
  void RefuseLeftOver(bool, const LoadOptions&) const override {}
  std::vector<std::shared_ptr<const void>> Storage() const override { return {}; }

 private:
  BlockType type_;
};

ModelShapes Describe(const fs::path& model, const ModelConfig& config, WeightType dtype, Checkpoint& checkpoint) {
  const std::shared_ptr<const void> nowhere = ReserveAddresses(1);
  auto weights = std::make_shared<Weights>();
  weights->config = config;
  weights->directory = model;
  weights->storage.push_back(nowhere);
  const std::vector<int64_t> units = StoredUnits(model);
  ModelShapes shapes;
  double parameters = 0;
  const auto describe = [&](const FileTensor& tensor, const std::vector<int64_t>& shape) {
    double elements = 1;
    for (const int64_t side : shape) elements *= static_cast<double>(side);
    parameters += elements;
    Check(parameters < kMostParameters, "{}: more than {:.0e} parameters", model.string(), kMostParameters);
    shapes.stored[tensor.TypeName()] += tensor.bytes();
    return TensorView{nowhere.get(), MemoryType(tensor, dtype), shape};
  };
  const auto take = [&](const std::string& name, const std::vector<int64_t>& shape) {
    return describe(checkpoint.Take(name, shape), shape);
  };
  weights->embedding = take("model.embed_tokens.weight", {config.vocab, config.hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BlockWeights& block = weights->blocks.emplace_back();
    const ModelConfig of_block =
        ConfigOfBlock(config, layer, layer < std::ssize(units) ? units[layer] : checkpoint.MlpUnitsOf(layer));
    for (const CheckpointTensor& tensor : checkpoint.BlockTensors(of_block)) {
      if (!Reads(checkpoint.HalvesOf(layer), *tensor.parts.front())) continue;
      const FileTensor stored = checkpoint.Take(checkpoint.BlockPrefix(layer) + tensor.name, tensor.shape);
      const TensorView whole = describe(Placed(stored, tensor), tensor.shape);
      for (const BlockTensor* part : tensor.parts)
        part->In(block) = {nowhere.get(), whole.dtype, part->Shape(of_block)};
    }
  }
  weights->final_norm = take("model.norm.weight", {config.hidden});
  if (config.block.norm_bias) weights->final_norm_bias = take("model.norm.bias", {config.hidden});
  weights->head = config.tied_head ? weights->embedding : take("lm_head.weight", {config.vocab, config.hidden});
  shapes.weights = std::move(weights);
  return shapes;
}

// The type that a config.json names.
DType DeclaredType(const nlohmann::json& config, const std::string& file) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.contains(key) || config[key].is_null()) continue;
    const std::string name = config[key].is_string() ? config[key].get<std::string>() : config[key].dump();
    for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      if (name == Name(type)) return type;
    Fail("{}: {} is {}, expected float32, float16 or bfloat16", file, key, name);
  }
  return DType::kBFloat16;
}

}  // namespace

ModelShapes ShapesOfConfig(const fs::path& config, WeightType dtype) {
  const nlohmann::json json = ReadUnmarked(config);
  const ModelConfig parsed = ConfigFromJson(json, config.string());
  DeclaredCheckpoint checkpoint(BlockTypeOf(DeclaredType(json, config.string())));
  ModelShapes shapes = Describe(config, parsed, dtype, checkpoint);
  shapes.source = config.string() + ", without weights";
  return shapes;
}

ModelShapes ShapesOfModel(const fs::path& model, WeightType dtype) {
  const bool gguf = IsGguf(model);
  if (!gguf && !Exists(model / "model.safetensors") && !Exists(model / "model.safetensors.index.json"))
    return ShapesOfConfig(model / "config.json", dtype);
  const ModelConfig config = gguf ? LoadGgufConfig(model) : LoadConfig(model / "config.json");
  const auto checkpoint = gguf ? OpenGguf(model, config) : OpenSafetensors(model, config);
  ModelShapes shapes = Describe(model, config, dtype, *checkpoint);
  shapes.source = fmt::format("the header{} of {}", gguf ? "" : "s", model.string());
  return shapes;
}

}  // namespace shiftrt
