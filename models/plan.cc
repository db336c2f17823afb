#include "models/plan.h"

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

DepthPlan DepthPlan::Original(int64_t layers) { return Pruned(layers, {}); }

DepthPlan DepthPlan::Pruned(int64_t layers, std::span<const int64_t> removed) {
  const std::vector<std::shared_ptr<const Lra>> bare(removed.size());
  return Corrected(layers, removed, bare);
}

DepthPlan DepthPlan::Corrected(int64_t layers, std::span<const int64_t> removed,
                               std::span<const std::shared_ptr<const Lra>> adapters) {
  Check(adapters.size() == removed.size(), "{} adapters given for {} removed layers", adapters.size(), removed.size());
  std::vector<bool> gone(layers, false);
  std::vector<std::shared_ptr<const Lra>> at(layers);
  for (size_t i = 0; i < removed.size(); ++i) {
    const int64_t layer = removed[i];
    Check(layer >= 0 && layer < layers, "removed layer {} is outside a model of {} layers", layer, layers);
    Check(!gone[layer], "layer {} is removed twice", layer);
    gone[layer] = true;
    at[layer] = adapters[i];
  }
  DepthPlan plan;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (!gone[layer]) {
      plan.stages.push_back(BlockStage{layer});
    } else if (at[layer]) {
      plan.stages.push_back(AdapterStage{{layer}, at[layer]});
    }
  }
  return plan;
}

std::vector<int64_t> DepthPlan::KeptLayers() const {
  std::vector<int64_t> kept;
  for (const Stage& stage : stages)
    if (const auto* block = std::get_if<BlockStage>(&stage)) kept.push_back(block->layer);
  return kept;
}

std::vector<int64_t> DepthPlan::RemovedLayers(int64_t layers) const {
  const std::vector<int64_t> kept = KeptLayers();
  std::vector<int64_t> removed;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (!std::binary_search(kept.begin(), kept.end(), layer)) removed.push_back(layer);
  return removed;
}

int64_t DepthPlan::blocks() const {
  return std::count_if(stages.begin(), stages.end(),
                       [](const Stage& stage) { return std::holds_alternative<BlockStage>(stage); });
}

}  // namespace shiftrt
