// SPDX-License-Identifier: Apache-2.0
#include "export/gguf_items.h"

#include <algorithm>

#include "kernels/matmul.h"
#include "models/block_tensors.h"
#include "models/checkpoint.h"
#include "runtime/gguf_writer.h"

namespace shiftrt {

namespace {

// Makes the tensors of the layers one by one.
class ItemMaker {
 public:
  ItemMaker(const Weights& weights, const GgufArchitecture& architecture, bool q8_0)
      : weights_(weights), config_(weights.config), architecture_(architecture), q8_0_(q8_0) {}

  GgufItem& Add(const std::string& name, const TensorView& tensor) {
    return items_.emplace_back(GgufItem{name, tensor.shape, {tensor}, GgufTypeOf(tensor, q8_0_)});
  }

  void AddLayer(int64_t number, const GgufFileLayers::Layer& layer) {
    prefix_ = fmt::format("blk.{}.", number);
    if (layer.block >= 0) AddBlock(layer.block, layer.halves);
    if (layer.matrix) AddMatrix(layer.lra);
    if (layer.block < 0 || !RunsMlp(layer.halves)) AddNoMlp(layer.lra);
  }

  std::vector<GgufItem> Take() { return std::move(items_); }

 private:
  void AddBlock(int64_t layer, Halves halves) {
    const BlockWeights& block = weights_.blocks[layer];
    for (const CheckpointTensor& tensor :
         GgufTensorsOf(architecture_, ConfigOfBlock(config_, layer, MlpUnits(block)))) {
      const BlockTensor& row = *tensor.parts.front();
      if (!Reads(halves, row) || row.IsNumber()) continue;
      GgufItem& item = Add(prefix_ + tensor.name, row.In(block));
      item.shape = tensor.shape;
      for (size_t part = 1; part < tensor.parts.size(); ++part) {
        item.parts.push_back(tensor.parts[part]->In(block));
        if (item.parts.back().dtype != item.parts.front().dtype && !q8_0_ && tensor.shape.size() > 1)
          item.type = BlockTypeOf(ExpandedType(item.parts.front().dtype));  // one of them is the plan's own
      }
      item.model_rows = Inverse(tensor.order);
      item.model_columns = Inverse(tensor.columns);
      // A block of a quantised row would have columns of several.
      if (item.model_columns != nullptr && !CanEncode(item.type, row.In(block).cols()))
        item.type = BlockTypeOf(ExpandedType(row.In(block).dtype));
      const bool routes = row.member == &BlockWeights::router || row.member == &BlockWeights::shared_weight;
      if (routes || row.kind == BlockTensor::Kind::kConvolution)
        item.type = BlockType::kF32;  // as llama.cpp's converter writes it
      if (row.HasNormOffset()) item.offset = config_.block.norm_offset;
      if (row.member == &BlockWeights::delta_a_log) item.map = DecayInGguf;
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

  // W of h += W norm(h), (output, input), and the weight of the norm; zeros for a bias or none.
  void AddMatrix(const Lra* lra) {
    const int64_t d = config_.hidden;
    const bool bias = lra == nullptr || lra->bias_alone();
    Matrix<float> weight = bias ? Matrix<float>::Zeros(d, d) : Matrix<float>(d, d);
    for (int64_t i = 0; !bias && i < d; ++i)
      for (int64_t j = 0; j < d; ++j) weight(j, i) = lra->a(i, j);
    bias ? AddOnes("attn_norm.weight") : AddComputed("attn_norm.weight", lra->norm.Clone(), true);
    AddComputed("attn_output.weight", std::move(weight), false);
  }

  // An MLP that adds nothing, or the bias of an adapter.
  void AddNoMlp(const Lra* lra) {
    const int64_t d = config_.hidden;
    AddOnes("ffn_norm.weight");
    AddComputed("ffn_gate.weight", Matrix<float>::Zeros(kNoMlpUnits, d), false);
    AddComputed("ffn_up.weight", Matrix<float>::Zeros(kNoMlpUnits, d), false);
    AddComputed("ffn_down.weight", Matrix<float>::Zeros(d, kNoMlpUnits), false);
    if (lra != nullptr) AddComputed("ffn_down.bias", lra->b.Clone(), true);
  }

  const Weights& weights_;
  const ModelConfig& config_;
  const GgufArchitecture& architecture_;
  const bool q8_0_;
  std::string prefix_;
  std::vector<GgufItem> items_;
};

}  // namespace

bool NeedsLayers(const Weights& weights, const DepthPlan& plan) {
  const std::vector<const BlockStage*> blocks = plan.Blocks();
  return plan.half_blocks() > 0 || !plan.Adapters().empty() ||
         std::any_of(blocks.begin(), blocks.end(),
                     [&](const BlockStage* block) { return HasOtherUnits(weights, *block); });
}

bool HoldsFamily(const GgufArchitecture& architecture, const ModelConfig& config) {
  return std::any_of(architecture.families.begin(), architecture.families.end(),
                     [&](const char* family) { return config.family == FindFamily(family)->name; });
}

DepthPlan WithDenseAdapters(const Context& context, const DepthPlan& plan) {
  DepthPlan dense = plan;
  for (Stage& stage : dense.stages) {
    stage = stage.Visit([](const BlockStage& block) -> Stage { return block; },
                        [&](const AdapterStage& adapter) -> Stage {
                          const Lra& lra = *adapter.lra;
                          if (!lra.low_rank() || lra.bias_alone()) return adapter;
                          Lra full;
                          full.a = Matrix<float>(lra.hidden(), lra.hidden());
                          MatMulRight(context, lra.p.view(), lra.q.view(), false, full.a.view());
                          full.b = lra.b.Clone();
                          full.norm = lra.norm.Clone();
                          return AdapterStage{adapter.parts, std::make_shared<const Lra>(std::move(full))};
                        });
  }
  return dense;
}

GgufFileLayers::GgufFileLayers(const Weights& weights, const DepthPlan& plan)
    : architecture_(NeedsLayers(weights, plan) ? *FindGgufArchitecture(kGgufByLayer)
                                               : *GgufArchitectureOf(weights.config)) {
  const ModelConfig& config = weights.config;
  const bool alike = !NeedsLayers(weights, plan);
  int64_t block = 0;
  for (const Stage& stage : plan.stages) {
    Layer& layer = layers_.emplace_back();
    int64_t units = 0;
    stage.Visit(
        [&](const BlockStage& kept) {
          layer.block = block++;
          layer.halves = kept.halves;
          units = MlpUnits(TensorsOf(weights, kept));
        },
        [&](const AdapterStage& adapter) { layer.lra = adapter.lra.get(); });
    if (alike) continue;
    const bool attention = layer.block >= 0 && RunsAttention(layer.halves),
               mlp = layer.block >= 0 && RunsMlp(layer.halves);
    layer.matrix = (layer.lra != nullptr && !layer.lra->bias_alone()) || (layers_.size() == 1 && !attention);
    sizes_.Add(attention || layer.matrix ? config.heads : 0, attention ? config.kv_heads : 0,
               mlp ? units : kNoMlpUnits);
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
  maker.Add(layers.architecture().final_norm, weights.final_norm).offset = config.block.norm_offset;
  if (config.block.norm_bias) maker.Add(kGgufFinalNormBias, weights.final_norm_bias);
  if (!config.tied_head) maker.Add(kGgufHead, weights.head);
  for (const auto& [name, values] : factors) maker.Add(name, {values.data(), DType::kFloat32, {std::ssize(values)}});
  return maker.Take();
}

}  // namespace shiftrt
