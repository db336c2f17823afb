// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/inspect.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "api/impl.h"
#include "api/repair.h"
#include "engine/activations.h"
#include "models/block_tensors.h"
#include "models/families.h"
#include "runtime/check.h"
#include "shift/criteria/criteria.h"
#include "text/calibration.h"

namespace shiftrt {

namespace {

std::vector<OwnTensors> OwnOf(const Model& model) {
  const Weights& weights = *model.weights;
  std::vector<OwnTensors> own;
  for (const BlockStage* block : model.plan.Blocks()) {
    OwnTensors tensors{block->layer, {}};
    ForEachTensor(TensorsOf(weights, *block), block->halves, [&](const BlockTensor& row, const TensorView& tensor) {
      const std::string_view name = row.name;
      if (tensor.data != row.In(weights.blocks[block->layer]).data)
        tensors.names.emplace_back(name.substr(0, name.rfind(".weight")));
    });
    if (!tensors.names.empty()) own.push_back(std::move(tensors));
  }
  return own;
}

TensorBytes BytesOf(const Model& model) {
  const Weights& weights = *model.weights;
  const OutputWeights output = model.plan.Output(weights);
  TensorBytes bytes;
  bytes.embedding = (output.table.empty() ? weights.embedding : output.table).bytes();
  bytes.norms = output.final_norm.bytes() + (output.final_norm_bias.empty() ? 0 : output.final_norm_bias.bytes());
  if (!model.plan.TiedHead(weights)) bytes.head = output.head.bytes();
  for (const BlockStage* block : model.plan.Blocks())
    ForEachTensor(TensorsOf(weights, *block), block->halves, [&](const BlockTensor& row, const TensorView& tensor) {
      const bool norm =
          std::string_view(row.name).find("norm.") != std::string_view::npos && row.output == Axis::kHidden;
      (norm ? bytes.norms : row.half == Halves::kMlp ? bytes.mlp : bytes.attention) += tensor.bytes();
    });
  return bytes;
}

std::vector<StoredType> StoredTypesOf(const Weights& weights) {
  std::map<std::string, StoredType> types;
  weights.ForEachStored([&](const CheckpointTensor&, std::span<const TensorView> parts) {
    const auto original = weights.stored.find(parts.front().data);
    const bool converted = original != weights.stored.end();
    std::string type = converted ? original->second.TypeName() : Name(parts.front().dtype);
    if (const DType in_memory = parts.front().dtype; converted && original->second.packed && !IsQuantised(in_memory))
      type += fmt::format(", expanded to {}", Name(in_memory));
    StoredType& of = types.try_emplace(type, StoredType{type}).first->second;
    ++of.tensors;
    for (const TensorView& part : parts) of.bytes += converted ? weights.stored.at(part.data).bytes() : part.bytes();
  });
  std::vector<StoredType> sorted;
  sorted.reserve(types.size());
  for (auto& [name, type] : types) sorted.push_back(std::move(type));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const StoredType& a, const StoredType& b) { return a.bytes > b.bytes; });
  return sorted;
}

}  // namespace

ModelDescription Describe(const LanguageModel& opened) {
  const Model& model = opened.impl().model;
  const Weights& weights = *model.weights;
  const ModelConfig& config = weights.config;
  const auto [final_norm, head, final_norm_bias, table] = model.plan.Output(weights);
  ModelDescription description;
  description.family = config.family;
  description.intermediate = config.intermediate;
  description.heads = config.heads;
  description.kv_heads = config.kv_heads;
  description.head_dim = config.head_dim;
  description.recurrent = RecurrentBlocks(config, model.plan);
  if (description.recurrent > 0)
    description.mixers = config.block.gated_delta ? "gated delta networks" : "short convolutions";
  description.tied_head = model.plan.TiedHead(weights);
  description.active_parameters = model.plan.ActiveParameters(weights);
  if (const MixtureSpec& mixture = config.block.mixture; config.block.mixed)
    description.mixture = {std::count(mixture.layers.begin(), mixture.layers.end(), true), mixture.experts,
                           mixture.active, mixture.units, mixture.shared_units};
  description.bytes = BytesOf(model);
  description.stored = StoredTypesOf(weights);
  description.removed = opened.RemovedLayers();
  if (description.removed.empty()) description.removed = model.removed;  // it was saved with its weights
  for (const BlockStage* block : model.plan.Blocks())
    if (block->halves != Halves::kBoth) description.half_blocks.emplace_back(block->layer, block->halves);
  description.own = OwnOf(model);
  description.own_norm =
      final_norm.data != weights.final_norm.data || final_norm_bias.data != weights.final_norm_bias.data;
  description.own_head = head.data != weights.head.data;
  for (const AdapterStage* adapter : model.plan.Adapters())
    description.adapters.push_back({adapter->parts, adapter->lra->rank(), adapter->lra->parameters()});
  if (model.lora) description.lora = {model.lora->rank, model.lora->alpha, std::ssize(model.lora->factors)};
  return description;
}

std::vector<Selection> ScoreLayers(const LanguageModel& opened, std::span<const PruneSpec> specs,
                                   const CalibrationSpec& text, uint64_t seed, const Resources& resources,
                                   Progress* progress) {
  const Model& model = opened.impl().model;
  CheckOriginal(model);
  const Context context = MakeContext(resources).ReducedPrecision();
  const auto turn = context.TakeTurn();
  CalibrationSet calibration;
  if (ReadsText(specs)) {
    if (text.source.empty()) FailUsage(Field("text"), "a criterion reads calibration text; give some");
    calibration = LoadCalibration(TextOf(text, model, "text"), model.RequireTokenizer(), seed,
                                  CalibrationBatchTokens(context.device));
  }
  ProgressOf reports(progress);
  return SelectLayers({specs.begin(), specs.end()}, {context, model.weights, &calibration.fit, seed}, reports);
}

bool ReadsText(std::span<const PruneSpec> specs) { return NeedCalibration({specs.begin(), specs.end()}); }

std::vector<SupportedFamily> SupportedFamilies() {
  std::vector<SupportedFamily> families;
  for (const Family& family : Families())
    families.push_back({family.architecture, family.name, family.since, family.models});
  return families;
}

}  // namespace shiftrt
