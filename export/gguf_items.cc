// SPDX-License-Identifier: Apache-2.0
#include "export/gguf_items.h"

#include <algorithm>

#include "models/block_tensors.h"
#include "runtime/gguf_writer.h"

namespace shiftrt {

namespace {

// Makes the tensors of the layers one by one.
class ItemMaker {
 public:
  ItemMaker(const Weights& weights, const GgufArchitecture& architecture, bool q8_0)
      : weights_(weights),
        config_(weights.config),
        architecture_(architecture),
        tensors_(GgufTensorsOf(architecture, weights.config)),
        q8_0_(q8_0) {}

  GgufItem& Add(const std::string& name, const TensorView& tensor) {
    return items_.emplace_back(GgufItem{name, tensor.shape, {tensor}, GgufTypeOf(tensor, q8_0_)});
  }

  void AddLayer(int64_t number, const GgufFileLayers::Layer& layer) {
    prefix_ = fmt::format("blk.{}.", number);
    AddBlock(weights_.blocks[layer.block], layer.halves);
    if (layer.placeholder) AddZeroMatrix();
    if (!RunsMlp(layer.halves)) AddNoMlp();
  }

  std::vector<GgufItem> Take() { return std::move(items_); }

 private:
  void AddBlock(const BlockWeights& block, Halves halves) {
    for (const CheckpointTensor& tensor : tensors_) {
      const BlockTensor& row = *tensor.parts.front();
      if (!Reads(halves, row)) continue;
      GgufItem& item = Add(prefix_ + tensor.name, block.*row.member);
      item.shape = tensor.shape;
      for (size_t part = 1; part < tensor.parts.size(); ++part) item.parts.push_back(block.*tensor.parts[part]->member);
      if (IsInterleavedInGguf(architecture_, config_, row))
        item.interleaved_heads = row.output == Axis::kQueries ? config_.heads : config_.kv_heads;
      if (row.kind == BlockTensor::Kind::kNorm) item.offset = config_.block.norm_offset;
    }
  }

  void AddComputed(const char* name, Matrix<float> values, bool vector) {
    const auto kept = std::make_shared<const Matrix<float>>(std::move(values));
    const std::vector<int64_t> shape =
        vector ? std::vector<int64_t>{kept->cols()} : std::vector<int64_t>{kept->rows(), kept->cols()};
    Add(prefix_ + name, {kept->data(), DType::kFloat32, shape}).storage = kept;
  }
  void AddOnes(const char* name) {
    Matrix<float> ones(1, config_.hidden);
    std::fill_n(ones.data(), ones.size(), 1.0f);
    AddComputed(name, std::move(ones), true);
  }

  void AddZeroMatrix() {
    AddOnes("attn_norm.weight");
    AddComputed("attn_output.weight", Matrix<float>::Zeros(config_.hidden, config_.hidden), false);
  }

  void AddNoMlp() {
    const int64_t d = config_.hidden;
    AddOnes("ffn_norm.weight");
    AddComputed("ffn_gate.weight", Matrix<float>::Zeros(kNoMlpUnits, d), false);
    AddComputed("ffn_up.weight", Matrix<float>::Zeros(kNoMlpUnits, d), false);
    AddComputed("ffn_down.weight", Matrix<float>::Zeros(d, kNoMlpUnits), false);
  }

  const Weights& weights_;
  const ModelConfig& config_;
  const GgufArchitecture& architecture_;
  const std::vector<CheckpointTensor> tensors_;
  const bool q8_0_;
  std::string prefix_;
  std::vector<GgufItem> items_;
};

}  // namespace

bool NeedsLayers(const DepthPlan& plan) { return plan.half_blocks() > 0; }

bool HoldsFamily(const GgufArchitecture& architecture, const ModelConfig& config) {
  return std::any_of(architecture.families.begin(), architecture.families.end(),
                     [&](const char* family) { return config.family == FindFamily(family)->name; });
}

GgufFileLayers::GgufFileLayers(const ModelConfig& config, const DepthPlan& plan)
    : architecture_(NeedsLayers(plan) ? *FindGgufArchitecture(kGgufByLayer) : *GgufArchitectureOf(config)) {
  for (const BlockStage* block : plan.Blocks()) {
    Layer& layer = layers_.emplace_back(Layer{layers_.size(), block->halves});
    if (!NeedsLayers(plan)) continue;
    const bool attention = RunsAttention(block->halves);
    layer.placeholder = layers_.size() == 1 && !attention;
    sizes_.Add(attention || layer.placeholder ? config.heads : 0, attention ? config.kv_heads : 0,
               RunsMlp(block->halves) ? config.intermediate : kNoMlpUnits);
  }
}

BlockType GgufTypeOf(const TensorView& tensor, bool q8_0) {
  if (tensor.shape.size() == 1) return BlockType::kF32;
  if (!q8_0) return BlockTypeOf(tensor.dtype);
  return CanEncode(BlockType::kQ8_0, tensor.shape.back()) ? BlockType::kQ8_0 : BlockType::kF16;
}

std::vector<GgufItem> GgufItems(const Weights& weights, const GgufFileLayers& layers, bool q8_0,
                                const RopeFactors& factors) {
  const ModelConfig& config = weights.config;
  ItemMaker maker(weights, layers.architecture(), q8_0);
  maker.Add(kGgufEmbedding, weights.embedding);
  for (int64_t i = 0; i < std::ssize(layers.layers()); ++i) maker.AddLayer(i, layers.layers()[i]);
  maker.Add(kGgufFinalNorm, weights.final_norm).offset = config.block.norm_offset;
  if (config.block.norm_bias) maker.Add(kGgufFinalNormBias, weights.final_norm_bias);
  if (!config.tied_head) maker.Add(kGgufHead, weights.head);
  for (const auto& [name, values] : factors) maker.Add(name, {values.data(), DType::kFloat32, {std::ssize(values)}});
  return maker.Take();
}

}  // namespace shiftrt
