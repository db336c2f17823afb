// SPDX-License-Identifier: Apache-2.0
#include "models/llama_layers_reader.h"

#include <algorithm>
#include <span>

#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/elements.h"

namespace shiftrt {

namespace fs = std::filesystem;

LlamaLayersReader::LlamaLayersReader(const fs::path& directory, std::vector<LlamaLayer> layers,
                                     const ModelConfig& blocks, const ModelConfig& llama)
    : directory_(directory), layers_(std::move(layers)), blocks_(blocks), llama_(llama) {
  Check(llama_.layers == std::ssize(layers_), "{}: the model has {} layers, and its shiftrt entry describes {}",
        (directory / "config.json").string(), llama_.layers, layers_.size());
  Check(llama_.hidden == blocks_.hidden && llama_.intermediate >= blocks_.intermediate,
        "{}: the sizes of the model do not fit those in its shiftrt entry", (directory / "config.json").string());
}

// The tensors of a layer that are no block's.
std::vector<std::string> LlamaLayersReader::Others(size_t layer) const {
  const LlamaLayer& places = layers_[layer];
  const std::string prefix = LlamaLayerPrefix(static_cast<int64_t>(layer));
  std::vector<std::string> names;
  if (places.attention < 0) names.push_back(prefix + kLlamaAttentionNorm);
  for (const std::string name : kLlamaProjections) {
    const bool output = name == "o_proj";
    const bool bias = output ? llama_.block.output_bias : llama_.block.qkv_bias,
               own = output ? blocks_.block.output_bias : blocks_.block.qkv_bias;
    if (places.attention < 0) names.push_back(fmt::format("{}self_attn.{}.weight", prefix, name));
    if (bias && (places.attention < 0 || !own)) names.push_back(fmt::format("{}self_attn.{}.bias", prefix, name));
  }
  if (places.mlp < 0) names.push_back(prefix + kLlamaMlpNorm);
  for (const char* name : kLlamaMatrices) {
    if (places.mlp < 0) names.push_back(fmt::format("{}mlp.{}.weight", prefix, name));
    if (llama_.block.mlp_bias && (places.mlp < 0 || !blocks_.block.mlp_bias))
      names.push_back(fmt::format("{}mlp.{}.bias", prefix, name));
  }
  return names;
}

void LlamaLayersReader::AddTo(LoadOptions& options) const {
  options.file_layers.assign(blocks_.layers, 0);
  options.mlp_units.assign(blocks_.layers, llama_.intermediate);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const int64_t block : {layers_[layer].attention, layers_[layer].mlp})
      if (block >= 0) options.file_layers.at(block) = static_cast<int64_t>(layer);
    for (std::string& name : Others(layer)) options.others.insert(std::move(name));
  }
}

void LlamaLayersReader::Changed(const std::string& name, const std::string& has) const {
  Fail(
      "{}: tensor {} {}, so the layers are not the plan that shiftrt in config.json describes. If the model was "
      "changed since its export, remove that entry: then it opens as a Llama of {} layers",
      directory_.string(), name, has, llama_.layers);
}

Matrix<float> LlamaLayersReader::Values(const std::string& name, const std::vector<int64_t>& shape) const {
  return FloatsOf(directory_.string(), tensors_, name, shape);
}

void LlamaLayersReader::RequireZeros(const std::string& name, const std::vector<int64_t>& shape, int64_t first_row,
                                     int64_t first_column) {
  const Matrix<float> values = Values(name, shape);
  for (int64_t i = first_row; i < values.rows(); ++i)
    for (int64_t j = first_column; j < values.cols(); ++j)
      if (values(i, j) != 0) Changed(name, fmt::format("holds {} where zeros were written", values(i, j)));
}

void LlamaLayersReader::CheckEmptyPlaces() {
  tensors_ = HfTensors(directory_, files_);
  const int64_t d = llama_.hidden, units = llama_.intermediate;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const LlamaLayer& places = layers_[layer];
    for (const std::string& name : Others(layer)) {
      const bool mlp = name.find(".mlp.") != name.npos, bias = name.ends_with(".bias");
      const bool ends = name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
      if (mlp && places.adapter >= 0) continue;  // Adapter() reads it
      // The last projection of a missing half is zeros, and so are the biases that the family of a block lacks.
      const bool missing = mlp ? places.mlp < 0 : places.attention < 0;
      if (!ends && !(bias && !missing)) continue;
      const int64_t outputs = ends                               ? d
                              : mlp                              ? units
                              : name.find("q_proj") != name.npos ? llama_.query_dim()
                                                                 : llama_.kv_dim();
      RequireZeros(name, bias  ? std::vector<int64_t>{outputs}
                         : mlp ? std::vector<int64_t>{d, units}
                               : std::vector<int64_t>{d, llama_.query_dim()});
    }
  }
}

std::shared_ptr<const Lra> LlamaLayersReader::Adapter(int64_t adapter, bool full, int64_t rank, bool norm) {
  const auto of =
      std::find_if(layers_.begin(), layers_.end(), [&](const LlamaLayer& layer) { return layer.adapter == adapter; });
  const std::string prefix = LlamaLayerPrefix(of - layers_.begin()), mlp = prefix + "mlp.";
  const int64_t d = llama_.hidden, units = llama_.intermediate;
  if (full) rank = d;
  Check(rank <= units, "{}: an adapter of rank {} in an MLP of {} units", directory_.string(), rank, units);
  RequireZeros(mlp + "gate_proj.weight", {units, d});
  RequireZeros(mlp + "up_proj.bias", {units});
  const Matrix<float> gate = Values(mlp + "gate_proj.bias", {units});
  for (int64_t i = 0; i < rank; ++i)
    if (gate(0, i) != kConstantGate)
      Changed(mlp + "gate_proj.bias", fmt::format("holds {}, expected {}", gate(0, i), kConstantGate));
  const Matrix<float> up = Values(mlp + "up_proj.weight", {units, d}),
                      down = Values(mlp + "down_proj.weight", {d, units});
  RequireZeros(mlp + "down_proj.weight", {d, units}, 0, rank);
  Lra lra;
  lra.b = Values(mlp + "down_proj.bias", {d});
  if (norm) lra.norm = Values(prefix + kLlamaMlpNorm, {d});
  if (full) {
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = 0; j < d; ++j)
        if (up(i, j) * kConstantGate != (i == j ? 1.0f : 0.0f))
          Changed(mlp + "up_proj.weight", fmt::format("holds {} in row {}, column {}", up(i, j), i, j));
    lra.a = Matrix<float>(d, d);
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = 0; j < d; ++j) lra.a(j, i) = down(i, j);
    return std::make_shared<const Lra>(std::move(lra));
  }
  lra.p = Matrix<float>(d, rank);
  lra.q = Matrix<float>(rank, d);
  for (int64_t i = 0; i < d; ++i)
    for (int64_t r = 0; r < rank; ++r) {
      lra.p(i, r) = up(r, i) * kConstantGate;
      lra.q(r, i) = down(i, r);
    }
  return std::make_shared<const Lra>(std::move(lra));
}

BlockStage LlamaLayersReader::WithUnits(const std::shared_ptr<const Weights>& weights, BlockStage stage,
                                        int64_t units) const {
  using B = BlockWeights;
  const BlockWeights& padded = weights->blocks[stage.layer];
  const int64_t before = MlpUnits(padded);
  if (!RunsMlp(stage.halves) || units == before) return stage;
  Check(units > 0 && units < before, "{}: block {} has {} units of {}", directory_.string(), stage.layer, units,
        before);
  const auto own = std::make_shared<OwnBlock>(*weights, stage);
  for (TensorView B::*member : {&B::gate, &B::up, &B::down, &B::gate_bias, &B::up_bias}) {
    const TensorView& tensor = padded.*member;
    if (tensor.empty()) continue;
    std::vector<float> kept;
    std::vector<int64_t> shape = tensor.shape;
    if (member == &B::down) {
      ForEachWidenedRow(tensor, [&](int64_t row, const std::vector<float>& values) {
        for (int64_t unit = units; unit < before; ++unit)
          if (values[unit] != 0)
            Changed(fmt::format("{}mlp.down_proj.weight", LlamaLayerPrefix(stage.layer)),
                    fmt::format("holds {} in row {} where zeros were written", values[unit], row));
        kept.insert(kept.end(), values.begin(), values.begin() + units);
      });
      shape[1] = units;
    } else {
      int64_t row = 0;
      ForEachWidenedRow(tensor, [&](int64_t, const std::vector<float>& values) {
        if (row++ < units) kept.insert(kept.end(), values.begin(), values.end());
      });
      if (tensor.shape.size() == 1) kept.resize(units);
      shape[0] = units;
    }
    own->Replace(member, std::span<const float>(kept), shape);
  }
  stage.own = OwnBlock::Share(own);
  return stage;
}

}  // namespace shiftrt
