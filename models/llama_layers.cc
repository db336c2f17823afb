// SPDX-License-Identifier: Apache-2.0
#include "models/llama_layers.h"

#include <fmt/format.h>

namespace shiftrt {

std::vector<LlamaLayer> LlamaLayersOf(const DepthPlan& plan) {
  std::vector<LlamaLayer> layers;
  int64_t blocks = 0, adapters = 0;
  // The layer whose MLP's place is next in order.
  const auto mlp_place = [&]() -> LlamaLayer& {
    const bool free = !layers.empty() && layers.back().mlp < 0 && layers.back().adapter < 0;
    return free ? layers.back() : layers.emplace_back();
  };
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          if (RunsAttention(block.halves)) layers.emplace_back().attention = blocks;
          if (RunsMlp(block.halves)) mlp_place().mlp = blocks;
          ++blocks;
        },
        [&](const AdapterStage&) { mlp_place().adapter = adapters++; });
  }
  return layers;
}

std::string LlamaLayerPrefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

}  // namespace shiftrt
