// SPDX-License-Identifier: Apache-2.0
#include "models/plan.h"

#include <algorithm>

#include "models/block_tensors.h"
#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

std::string HashOf(const Matrix<float>& matrix) { return HashHex(std::as_bytes(matrix.span())); }
std::string HashOf(const TensorView& tensor) {
  return HashHex({static_cast<const std::byte*>(tensor.data), static_cast<size_t>(tensor.bytes())});
}

// The sum over a plan's stages of block(tensor), for each tensor of the halves that run, and of adapter(lra).
template <typename BlockSize, typename AdapterSize>
int64_t Sum(const DepthPlan& plan, const Weights& weights, const BlockSize& block, const AdapterSize& adapter) {
  int64_t total = 0;
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& s) {
          ForEachTensor(TensorsOf(weights, s), s.halves,
                        [&](const BlockTensor&, const TensorView& tensor) { total += block(tensor); });
        },
        [&](const AdapterStage& s) { total += adapter(*s.lra); });
  }
  return total;
}

}  // namespace

const char* Name(Halves halves) {
  switch (halves) {
    case Halves::kBoth: return "both";
    case Halves::kAttention: return "attention";
    case Halves::kMlp: return "mlp";
  }
  return "?";
}

std::optional<Halves> ParseHalves(std::string_view name) {
  for (const Halves halves : {Halves::kBoth, Halves::kAttention, Halves::kMlp})
    if (name == Name(halves)) return halves;
  return std::nullopt;
}

const BlockStage& Stage::block() const {
  return *Visit([](const BlockStage& block) { return &block; },
                [](const AdapterStage& adapter) -> const BlockStage* {
                  Fail("the adapter for layers {} is not a block", fmt::join(adapter.layers, ", "));
                });
}

const AdapterStage& Stage::adapter() const {
  return *Visit([](const BlockStage& block) -> const AdapterStage* { Fail("block {} is not an adapter", block.layer); },
                [](const AdapterStage& adapter) { return &adapter; });
}

std::vector<int64_t> Stage::CorrectedLayers() const {
  return Visit(
      [](const BlockStage& block) { return block.own ? std::vector<int64_t>{block.layer} : std::vector<int64_t>{}; },
      [](const AdapterStage& adapter) { return adapter.layers; });
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

DepthPlan DepthPlan::Original(int64_t layers) { return Corrected(layers, {}); }

DepthPlan DepthPlan::Pruned(int64_t layers, std::span<const int64_t> removed) {
  const std::vector<std::shared_ptr<const Lra>> bare(removed.size());
  return Corrected(layers, removed, bare);
}

DepthPlan DepthPlan::Corrected(int64_t layers, std::span<const AdapterStage> sites) {
  std::vector<const AdapterStage*> site_of(layers, nullptr);  // by layer
  for (const AdapterStage& site : sites) {
    for (size_t i = 0; i < site.layers.size(); ++i) {
      const int64_t layer = site.layers[i];
      Check(layer >= 0 && layer < layers, "removed layer {} is outside a model of {} layers", layer, layers);
      Check(i == 0 || layer == site.layers[i - 1] + 1, "removed layers {} of one site are not consecutive",
            fmt::join(site.layers, ", "));
      Check(site_of[layer] == nullptr, "layer {} is removed twice", layer);
      site_of[layer] = &site;
    }
  }
  DepthPlan plan;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const AdapterStage* const site = site_of[layer];
    if (site == nullptr) {
      plan.stages.emplace_back(BlockStage{layer});
    } else if (site->lra && layer == site->layers.front()) {
      plan.stages.emplace_back(*site);
    }
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
  return output ? *output : OutputWeights{weights.final_norm, weights.head};
}

bool DepthPlan::TiedHead(const Weights& weights) const {
  return weights.config.tied_head && (!output || output->head.data == weights.head.data);
}

int64_t DepthPlan::Parameters(const Weights& weights) const {
  const OutputWeights last = Output(weights);
  return weights.embedding.elements() + last.final_norm.elements() + (TiedHead(weights) ? 0 : last.head.elements()) +
         Sum(
             *this, weights, [](const TensorView& tensor) { return tensor.elements(); },
             [](const Lra& lra) { return lra.parameters(); });
}

int64_t DepthPlan::BytesPerToken(const Weights& weights) const {
  const OutputWeights last = Output(weights);
  return weights.embedding.bytes() / weights.config.vocab + last.final_norm.bytes() + last.head.bytes() +
         Sum(
             *this, weights, [](const TensorView& tensor) { return tensor.bytes(); },
             [](const Lra& lra) { return lra.parameters() * static_cast<int64_t>(sizeof(float)); });
}

std::string DepthPlan::Fingerprint() const {
  std::string text;
  for (const Stage& stage : stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          text += fmt::format("block {} {};", block.layer, Name(block.halves));
          if (block.own == nullptr) return;
          ForEachTensor(*block.own, block.halves,
                        [&](const BlockTensor&, const TensorView& tensor) { text += HashOf(tensor); });
        },
        [&](const AdapterStage& adapter) {
          const Lra& lra = *adapter.lra;
          text += fmt::format("lra {} {} {} {};", HashOf(lra.a), HashOf(lra.p), HashOf(lra.q), HashOf(lra.b));
        });
  }
  if (output) text += fmt::format("output {} {};", HashOf(output->final_norm), HashOf(output->head));
  return HashHex(text);
}

}  // namespace shiftrt
