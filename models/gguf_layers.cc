// SPDX-License-Identifier: Apache-2.0
#include "models/gguf_layers.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/gguf.h"
#include "models/model.h"
#include "runtime/check.h"
#include "runtime/json.h"
#include "runtime/printable.h"
#include "types/provenance.h"

namespace shiftrt {

namespace {

constexpr int64_t kMostUnits = int64_t{1} << 31;

// A setting that a file has for all layers, or for each.
std::vector<int64_t> OfEachLayer(const GgufMetadata& metadata, const std::string& key, int64_t layers) {
  const auto found = metadata.values().find(key);
  if (found == metadata.values().end() || !found->second.array)
    return std::vector<int64_t>(layers, metadata.Integer(key, 0, kMostUnits));
  std::vector<int64_t> values = metadata.Integers(key);
  Check(std::ssize(values) == layers, "{}: {} has {} entries for {} layers", metadata.name(), key, values.size(),
        layers);
  for (const int64_t value : values)
    Check(value >= 0 && value <= kMostUnits, "{}: {} has {}, expected 0 to {}", metadata.name(), key, value,
          kMostUnits);
  return values;
}

std::string TensorOf(int64_t layer, std::string_view name) { return fmt::format("blk.{}.{}", layer, name); }

const GgufTensor* FindTensor(const GgufContents& file, const std::string& name) {
  const auto found = file.tensors.find(name);
  return found == file.tensors.end() ? nullptr : &found->second;
}

// A tensor that must have this shape, and a type that can be read.
const GgufTensor& TensorOfShape(const GgufContents& file, const std::string& name, const std::vector<int64_t>& shape) {
  const GgufTensor* const tensor = FindTensor(file, name);
  Check(tensor != nullptr, "{}: tensor {} is missing", file.metadata.name(), name);
  Check(tensor->shape == shape, "{}: tensor {} has shape [{}], expected [{}]", file.metadata.name(), name,
        fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
  Check(tensor->type->decode != nullptr, "{}: tensor {} is of type {}, which is not supported ({} are)",
        file.metadata.name(), name, tensor->type->name, DecodableTypes());
  return *tensor;
}

// The numbers of a tensor of this shape.
Matrix<float> Decoded(const GgufContents& file, const std::string& name, const std::vector<int64_t>& shape) {
  const GgufTensor& tensor = TensorOfShape(file, name, shape);
  Matrix<float> values(shape.size() == 1 ? 1 : shape[0], shape.back());
  tensor.type->decode(tensor.data, tensor.bytes / tensor.type->bytes, values.data());
  for (const float value : values.span())
    Check(std::isfinite(value), "{}: tensor {} holds {}", file.metadata.name(), name, value);
  return values;
}

bool AllZero(const Matrix<float>& values) {
  return std::all_of(values.span().begin(), values.span().end(), [](float value) { return value == 0; });
}

// True if all numbers of a matrix of this shape are zero. Reads it up to the first that is not.
bool IsZero(const GgufContents& file, const std::string& name, const std::vector<int64_t>& shape) {
  const GgufTensor& tensor = TensorOfShape(file, name, shape);
  const int64_t blocks = shape.back() / tensor.type->elements;  // the blocks of a row
  std::vector<float> values(shape.back());
  for (int64_t row = 0; row < shape.front(); ++row) {
    tensor.type->decode(tensor.data + row * blocks * tensor.type->bytes, blocks, values.data());
    if (std::any_of(values.begin(), values.end(), [](float value) { return value != 0; })) return false;
  }
  return true;
}

// The adapter of a layer: the matrix in the place of its attention, and the bias of its MLP if that is none. Null if
// they add nothing.
std::shared_ptr<const Lra> AdapterOf(const GgufContents& file, const GgufLayers::Layer& layer, int64_t number,
                                     int64_t hidden) {
  Lra lra;
  lra.b = Matrix<float>::Zeros(1, hidden);
  const std::string bias = TensorOf(number, "ffn_down.bias");
  if (!layer.mlp && FindTensor(file, bias) != nullptr) lra.b = Decoded(file, bias, {hidden});
  Matrix<float> weight;
  if (layer.linear) weight = Decoded(file, TensorOf(number, "attn_output.weight"), {hidden, hidden});
  if (weight.empty() || AllZero(weight)) {
    if (AllZero(lra.b)) return nullptr;
    lra.p = Matrix<float>(hidden, 0);
    lra.q = Matrix<float>(0, hidden);
    return std::make_shared<const Lra>(std::move(lra));
  }
  lra.a = Matrix<float>(hidden, hidden);
  for (int64_t i = 0; i < hidden; ++i)
    for (int64_t j = 0; j < hidden; ++j) lra.a(j, i) = weight(i, j);
  lra.norm = Decoded(file, TensorOf(number, "attn_norm.weight"), {hidden});
  return std::make_shared<const Lra>(std::move(lra));
}

// The parts that each adapter replaces, as the file says; empty if it does not.
std::vector<std::vector<BlockPart>> StatedParts(const GgufMetadata& metadata) {
  std::vector<std::vector<BlockPart>> stated;
  if (!metadata.Has(kGgufAdapters)) return stated;
  for (const std::string_view text : metadata.Texts(kGgufAdapters)) {
    std::vector<BlockPart>& parts = stated.emplace_back();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(' ', begin), text.size());
      const std::optional<BlockPart> part = ParseBlockPart(text.substr(begin, end - begin));
      Check(part && part->layer < kMostUnits && (parts.empty() || part->begin() >= parts.back().end()),
            "{}: {} has \"{}\", which is no ascending list of layers", metadata.name(), kGgufAdapters, Printable(text));
      parts.push_back(*part);
      begin = end + 1;
    }
  }
  return stated;
}

}  // namespace

int64_t GgufLayers::blocks() const { return std::ssize(BlockLayers()); }

std::vector<int64_t> GgufLayers::BlockLayers() const {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i].block()) numbers.push_back(static_cast<int64_t>(i));
  return numbers;
}

std::vector<Halves> GgufLayers::BlockHalves() const {
  std::vector<Halves> halves;
  for (const Layer& layer : layers)
    if (layer.block())
      halves.push_back(layer.attention && layer.mlp ? Halves::kBoth : layer.mlp ? Halves::kMlp : Halves::kAttention);
  return halves;
}

std::vector<int64_t> GgufLayers::BlockUnits() const {
  std::vector<int64_t> units;
  for (const Layer& layer : layers)
    if (layer.block()) units.push_back(layer.units);
  return units;
}

std::string GgufLayers::Attention(const char* tensor) const {
  const auto first = std::find_if(layers.begin(), layers.end(), [](const Layer& layer) { return layer.attention; });
  return TensorOf(first == layers.end() ? 0 : first - layers.begin(), tensor);
}

std::string GgufLayers::Mlp(const char* tensor) const {
  const auto first = std::find_if(layers.begin(), layers.end(), [](const Layer& layer) { return layer.mlp; });
  return TensorOf(first == layers.end() ? 0 : first - layers.begin(), tensor);
}

const char* GgufLayers::Family(const GgufContents& file) const {
  const bool inputs = file.tensors.contains(Attention("attn_q.bias")),
             output = file.tensors.contains(Attention("attn_output.bias"));
  return inputs && !output ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
}

std::set<std::string, std::less<>> GgufLayers::OtherTensors() const {
  std::set<std::string, std::less<>> names;
  for (int64_t i = 0; i < std::ssize(layers); ++i) {
    if (layers[i].linear)
      for (const char* name : {"attn_norm.weight", "attn_output.weight"}) names.insert(TensorOf(i, name));
    if (layers[i].mlp) continue;
    names.insert(TensorOf(i, "ffn_norm.weight"));
    for (const char* name : {"gate", "up", "down"})
      for (const char* kind : {"weight", "bias"}) names.insert(TensorOf(i, fmt::format("ffn_{}.{}", name, kind)));
  }
  return names;
}

GgufLayers ReadGgufLayers(const GgufContents& file, const GgufArchitecture& architecture) {
  const GgufMetadata& metadata = file.metadata;
  const auto key = [&](const char* name) { return fmt::format("{}.{}", architecture.name, name); };
  const int64_t count = metadata.Integer(key("block_count"), 1, kMostUnits);
  const std::string heads_key = key("attention.head_count"), kv_key = key("attention.head_count_kv"),
                    units_key = key("feed_forward_length");
  const std::vector<int64_t> heads = OfEachLayer(metadata, heads_key, count),
                             kv_heads = metadata.Has(kv_key) ? OfEachLayer(metadata, kv_key, count) : heads,
                             units = OfEachLayer(metadata, units_key, count);
  const int64_t hidden = metadata.Integer(key("embedding_length"), 1, kMostUnits);
  GgufLayers out;
  out.intermediate = *std::max_element(units.begin(), units.end());
  for (int64_t i = 0; i < count; ++i) {
    GgufLayers::Layer& layer = out.layers.emplace_back();
    Check(units[i] > 0, "{}: {} of layer {} is 0: llama.cpp leaves out such a layer, and it is not supported",
          metadata.name(), units_key, i);
    layer.linear = heads[i] > 0 && kv_heads[i] == 0;
    layer.attention = heads[i] > 0 && kv_heads[i] > 0;
    if (layer.attention) {
      if (out.heads == 0) {
        out.heads = heads[i];
        out.kv_heads = kv_heads[i];
      }
      Check(heads[i] == out.heads && kv_heads[i] == out.kv_heads,
            "{}: layer {} has {} heads and {} of keys and values, and an earlier one {} and {}: attentions of several "
            "sizes are not supported",
            metadata.name(), i, heads[i], kv_heads[i], out.heads, out.kv_heads);
    }
    layer.units = units[i];
    layer.mlp = units[i] == out.intermediate || !IsZero(file, TensorOf(i, "ffn_down.weight"), {hidden, units[i]});
  }
  Check(out.heads > 0, "{}: {} and {} give no layer an attention, which is not supported", metadata.name(), heads_key,
        kv_key);
  return out;
}

bool IsGgufOfLayers(const GgufContents& file) {
  const GgufArchitecture* const architecture = FindGgufArchitecture(file.metadata.Text("general.architecture", ""));
  return architecture != nullptr && architecture->by_layer;
}

void ReadGgufPlan(const GgufContents& file, Model& model) {
  const GgufMetadata& metadata = file.metadata;
  const GgufLayers layers = ReadGgufLayers(file, *FindGgufArchitecture(metadata.Text("general.architecture")));
  const std::vector<std::vector<BlockPart>> stated = StatedParts(metadata);
  const std::vector<Halves> halves = layers.BlockHalves();
  model.plan = {};
  int64_t block = 0;
  size_t adapters = 0;
  for (int64_t i = 0; i < std::ssize(layers.layers); ++i) {
    const GgufLayers::Layer& layer = layers.layers[i];
    const auto add_block = [&] { model.plan.stages.emplace_back(BlockStage{block, halves[block]}); };
    // The bias of an MLP that is none comes after an attention, and a matrix before an MLP.
    if (layer.attention) add_block();
    if (const auto lra = AdapterOf(file, layer, i, model.weights->config.hidden)) {
      Check(!metadata.Has(kGgufAdapters) || adapters < stated.size(),
            "{}: {} has {} entries, and there are more adapters", metadata.name(), kGgufAdapters, stated.size());
      model.plan.stages.emplace_back(
          AdapterStage{stated.empty() ? std::vector<BlockPart>{BlockPart(i)} : stated[adapters], lra});
      ++adapters;
    }
    if (!layer.attention && layer.mlp) add_block();
    if (layer.block()) ++block;
  }
  Check(stated.empty() || adapters == stated.size(), "{}: {} has {} entries for {} adapters", metadata.name(),
        kGgufAdapters, stated.size(), adapters);
  if (metadata.Has(kGgufRemoved)) {
    model.removed = metadata.Integers(kGgufRemoved);
    model.renumbered = adapters > 0;
    for (size_t i = 0; i < model.removed.size(); ++i)
      Check(model.removed[i] >= (i == 0 ? 0 : model.removed[i - 1] + 1) && model.removed[i] < kMostUnits,
            "{}: {} is not an ascending list of layers", metadata.name(), kGgufRemoved);
  }
  if (metadata.Has(kGgufProvenance))
    model.provenance = ReadProvenance(ParseJson(std::string(metadata.Text(kGgufProvenance)),
                                                fmt::format("{}: {}", metadata.name(), kGgufProvenance)));
}

}  // namespace shiftrt
