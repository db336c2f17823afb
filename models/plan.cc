// SPDX-License-Identifier: Apache-2.0
#include "models/plan.h"

#include <algorithm>
#include <numeric>

#include "models/block_tensors.h"
#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

std::string HashOf(const Matrix<float>& matrix) { return HashHex(std::as_bytes(matrix.span())); }
std::string HashOf(const TensorView& tensor) {
  return HashHex({static_cast<const std::byte*>(tensor.data), static_cast<size_t>(tensor.bytes())});
}

// The sum over a plan's stages of block(row, tensor), for each tensor of the halves that run, and of adapter(lra).
template <typename BlockSize, typename AdapterSize>
int64_t Sum(const DepthPlan& plan, const Weights& weights, const BlockSize& block, const AdapterSize& adapter) {
  int64_t total = 0;
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& s) {
          ForEachTensor(TensorsOf(weights, s), s.halves,
                        [&](const BlockTensor& row, const TensorView& tensor) { total += block(row, tensor); });
        },
        [&](const AdapterStage& s) { total += adapter(*s.lra); });
  }
  return total;
}

// The part of a tensor's elements or bytes that a token reads on average over the experts.
int64_t ActiveShare(const Weights& weights, const BlockTensor& row, int64_t size) {
  const MixtureSpec& mixture = weights.config.block.mixture;
  return row.expert < 0 ? size : size * mixture.active / mixture.experts;
}

int64_t BytesOfLra(const Lra& lra) { return lra.parameters() * static_cast<int64_t>(sizeof(float)); }

}  // namespace

std::vector<BlockPart> PartsAt(std::span<const int64_t> places) {
  std::vector<BlockPart> parts;
  for (const int64_t place : places) {
    const BlockPart half = BlockPart::At(place);
    if (!parts.empty() && parts.back().layer == half.layer) {
      parts.back().halves = Halves::kBoth;
    } else {
      parts.push_back(half);
    }
  }
  return parts;
}

std::vector<BlockPart> PartsBetween(int64_t begin, int64_t end) {
  std::vector<int64_t> places(end - begin);
  std::iota(places.begin(), places.end(), begin);
  return PartsAt(places);
}

std::vector<BlockPart> WholeBlocks(std::span<const int64_t> layers) { return {layers.begin(), layers.end()}; }

std::vector<int64_t> LayersOf(std::span<const BlockPart> parts) {
  std::vector<int64_t> layers;
  for (const BlockPart& part : parts) layers.push_back(part.layer);
  return layers;
}

const BlockStage& Stage::block() const {
  return *Visit([](const BlockStage& block) { return &block; },
                [](const AdapterStage& adapter) -> const BlockStage* {
                  Fail("the adapter for layers {} is not a block", Names(adapter.parts));
                });
}

const AdapterStage& Stage::adapter() const {
  return *Visit([](const BlockStage& block) -> const AdapterStage* { Fail("block {} is not an adapter", block.layer); },
                [](const AdapterStage& adapter) { return &adapter; });
}

std::vector<BlockPart> Stage::CorrectedParts() const {
  return Visit(
      [](const BlockStage& block) {
        return block.own ? std::vector<BlockPart>{{block.layer, block.halves}} : std::vector<BlockPart>{};
      },
      [](const AdapterStage& adapter) { return adapter.parts; });
}

std::optional<Stage> Stage::Uncorrected() const {
  return Visit(
      [](const BlockStage& block) -> std::optional<Stage> {
        return BlockStage{block.layer, block.halves};
      },
      [](const AdapterStage&) -> std::optional<Stage> { return std::nullopt; });
}

const BlockWeights& TensorsOf(const Weights& weights, const BlockStage& stage) {
  return stage.own ? *stage.own : weights.blocks[stage.layer];
}

bool HasOtherUnits(const Weights& weights, const BlockStage& stage) {
  const BlockWeights& block = TensorsOf(weights, stage);
  return RunsMlp(stage.halves) && !block.IsMixture() && MlpUnits(block) != weights.config.intermediate;
}

const char* MissingTensor(const Weights& weights, const BlockStage& stage) {
  const BlockWeights& block = TensorsOf(weights, stage);
  const ModelConfig of_block = ConfigOfBlock(weights.config, stage.layer, 0);
  for (const BlockTensor& row : BlockTensors()) {
    if (row.kind == BlockTensor::Kind::kBias || !Reads(stage.halves, row)) continue;
    if ((block.*row.member).empty() && !row.Shape(of_block).empty()) return row.name;
  }
  if (of_block.block.mixed && RunsMlp(stage.halves) && !block.IsMixture()) return ExpertTensors(0).front().name;
  return nullptr;
}

DepthPlan DepthPlan::Original(int64_t layers) { return Corrected(layers, {}); }

DepthPlan DepthPlan::Pruned(int64_t layers, std::span<const int64_t> removed) {
  return Pruned(layers, WholeBlocks(removed));
}

DepthPlan DepthPlan::Pruned(int64_t layers, std::span<const BlockPart> removed) {
  std::vector<AdapterStage> sites;
  for (const BlockPart& part : removed) sites.push_back({{part}, nullptr});
  return Corrected(layers, sites);
}

DepthPlan DepthPlan::Corrected(int64_t layers, std::span<const AdapterStage> sites) {
  std::vector<const AdapterStage*> site_at(2 * layers, nullptr);  // by place
  for (const AdapterStage& site : sites) {
    for (size_t i = 0; i < site.parts.size(); ++i) {
      const BlockPart& part = site.parts[i];
      Check(part.layer >= 0 && part.layer < layers, "removed layer {} is outside a model of {} layers", Name(part),
            layers);
      Check(i == 0 || part.begin() == site.parts[i - 1].end(), "removed layers {} of one site are not consecutive",
            Names(site.parts));
      for (int64_t place = part.begin(); place < part.end(); ++place) {
        Check(site_at[place] == nullptr, "layer {} is removed twice", Name(part));
        site_at[place] = &site;
      }
    }
  }
  DepthPlan plan;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool attention = site_at[2 * layer] == nullptr, mlp = site_at[2 * layer + 1] == nullptr;
    const auto begin_site = [&](const BlockPart& half) {
      const AdapterStage* const site = site_at[half.begin()];
      if (site != nullptr && site->lra && half.begin() == site->parts.front().begin()) plan.stages.emplace_back(*site);
    };
    begin_site({layer, Halves::kAttention});
    if (attention && mlp) plan.stages.emplace_back(BlockStage{layer});
    if (attention && !mlp) plan.stages.emplace_back(BlockStage{layer, Halves::kAttention});
    begin_site({layer, Halves::kMlp});
    if (!attention && mlp) plan.stages.emplace_back(BlockStage{layer, Halves::kMlp});
  }
  return plan;
}

DepthPlan DepthPlan::Corrected(int64_t layers, std::span<const int64_t> removed,
                               std::span<const std::shared_ptr<const Lra>> adapters) {
  Check(adapters.size() == removed.size(), "{} adapters given for {} removed layers", adapters.size(), removed.size());
  std::vector<AdapterStage> sites;
  for (size_t i = 0; i < removed.size(); ++i) sites.push_back({{removed[i]}, adapters[i]});
  return Corrected(layers, sites);
}

std::vector<const BlockStage*> DepthPlan::Blocks() const {
  std::vector<const BlockStage*> blocks;
  for (const Stage& stage : stages)
    stage.Visit([&](const BlockStage& block) { blocks.push_back(&block); }, [](const AdapterStage&) {});
  return blocks;
}

std::vector<const AdapterStage*> DepthPlan::Adapters() const {
  std::vector<const AdapterStage*> adapters;
  for (const Stage& stage : stages)
    stage.Visit([](const BlockStage&) {}, [&](const AdapterStage& adapter) { adapters.push_back(&adapter); });
  return adapters;
}

std::vector<int64_t> DepthPlan::KeptLayers() const {
  std::vector<int64_t> kept;
  for (const BlockStage* block : Blocks()) kept.push_back(block->layer);
  return kept;
}

std::vector<int64_t> DepthPlan::RemovedLayers(int64_t layers) const {
  const std::vector<int64_t> kept = KeptLayers();
  std::vector<int64_t> removed;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (!std::binary_search(kept.begin(), kept.end(), layer)) removed.push_back(layer);
  return removed;
}

int64_t DepthPlan::blocks() const { return std::ssize(Blocks()); }

int64_t DepthPlan::attention_blocks() const {
  const std::vector<const BlockStage*> all = Blocks();
  return std::count_if(all.begin(), all.end(), [](const BlockStage* block) { return RunsAttention(block->halves); });
}

int64_t DepthPlan::half_blocks() const {
  const std::vector<const BlockStage*> all = Blocks();
  return std::count_if(all.begin(), all.end(), [](const BlockStage* block) { return block->halves != Halves::kBoth; });
}

size_t DepthPlan::StageOf(int64_t layer) const {
  for (size_t i = 0; i < stages.size(); ++i) {
    const bool here = stages[i].Visit([&](const BlockStage& block) { return block.layer == layer; },
                                      [](const AdapterStage&) { return false; });
    if (here) return i;
  }
  Fail("layer {} is not among the blocks this depth plan runs", layer);
}

DepthPlan DepthPlan::With(size_t stage, const std::optional<Stage>& replacement) const {
  DepthPlan plan = *this;
  const auto at = plan.stages.begin() + static_cast<int64_t>(stage);
  if (replacement) {
    *at = *replacement;
  } else {
    plan.stages.erase(at);
  }
  return plan;
}

DepthPlan DepthPlan::Uncorrected() const {
  DepthPlan plan;
  for (const Stage& stage : stages)
    if (const std::optional<Stage> bare = stage.Uncorrected()) plan.stages.push_back(*bare);
  return plan;
}

OutputWeights DepthPlan::Output(const Weights& weights) const {
  return output ? *output : OutputWeights{weights.final_norm, weights.head, weights.final_norm_bias};
}

bool DepthPlan::TiedHead(const Weights& weights) const {
  return weights.config.tied_head &&
         (!output || output->head.data == weights.head.data || output->head.data == output->table.data);
}

int64_t DepthPlan::Parameters(const Weights& weights) const {
  const OutputWeights last = Output(weights);
  return weights.embedding.elements() + last.final_norm.elements() +
         (last.final_norm_bias.empty() ? 0 : last.final_norm_bias.elements()) +
         (TiedHead(weights) ? 0 : last.head.elements()) +
         Sum(
             *this, weights, [](const BlockTensor&, const TensorView& tensor) { return tensor.elements(); },
             [](const Lra& lra) { return lra.parameters(); });
}

int64_t DepthPlan::ActiveParameters(const Weights& weights) const {
  return Parameters(weights) - Sum(
                                   *this, weights,
                                   [&](const BlockTensor& row, const TensorView& tensor) {
                                     return tensor.elements() - ActiveShare(weights, row, tensor.elements());
                                   },
                                   [](const Lra&) { return int64_t{0}; });
}

int64_t DepthPlan::BytesPerToken(const Weights& weights) const {
  return BytesOutsideBlocks(weights) + Sum(
                                           *this, weights,
                                           [&](const BlockTensor& row, const TensorView& tensor) {
                                             return ActiveShare(weights, row, tensor.bytes());
                                           },
                                           BytesOfLra);
}

int64_t DepthPlan::Bytes(const Weights& weights) const {
  const OutputWeights last = Output(weights);
  const TensorView& table = last.table.empty() ? weights.embedding : last.table;
  return BytesOutsideBlocks(weights) - weights.embedding.bytes() / weights.config.vocab +
         (TiedHead(weights) ? 0 : table.bytes()) +
         Sum(
             *this, weights, [](const BlockTensor&, const TensorView& tensor) { return tensor.bytes(); }, BytesOfLra);
}

// The sum of what a token reads of final norm, head, and embedding table, of which it reads one row.
int64_t DepthPlan::BytesOutsideBlocks(const Weights& weights) const {
  const OutputWeights last = Output(weights);
  return weights.embedding.bytes() / weights.config.vocab + last.final_norm.bytes() +
         (last.final_norm_bias.empty() ? 0 : last.final_norm_bias.bytes()) + last.head.bytes();
}

std::string DepthPlan::Fingerprint() const {
  std::string text;
  for (const Stage& stage : stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          text += fmt::format("block {} {};", block.layer, Name(block.halves));
          if (block.own == nullptr) return;
          if (RunsMlp(block.halves)) text += fmt::format("units {};", MlpUnits(*block.own));
          ForEachTensor(*block.own, block.halves,
                        [&](const BlockTensor&, const TensorView& tensor) { text += HashOf(tensor); });
        },
        [&](const AdapterStage& adapter) {
          const Lra& lra = *adapter.lra;
          text += fmt::format("lra {} {} {} {};", HashOf(lra.a), HashOf(lra.p), HashOf(lra.q), HashOf(lra.b));
          if (lra.normed()) text += fmt::format("norm {};", HashOf(lra.norm));
        });
  }
  if (output) text += fmt::format("output {} {};", HashOf(output->final_norm), HashOf(output->head));
  if (output && !output->final_norm_bias.empty()) text += fmt::format("bias {};", HashOf(output->final_norm_bias));
  if (output && !output->table.empty()) text += fmt::format("table {};", HashOf(output->table));
  return HashHex(text);
}

}  // namespace shiftrt
