// SPDX-License-Identifier: Apache-2.0
// Criteria that remove a block and measure the loss.
#include <cmath>

#include "shift/criteria/greedy.h"
#include "shift/measure/loss.h"

namespace shiftrt {

namespace {

void ToPerplexity(std::vector<double>& losses) {
  for (double& loss : losses) loss = std::exp(loss);
}

}  // namespace

Selection SelectByPerplexity(const CriterionTask& task) {
  const auto& [spec, count, input, probes, progress] = task;
  const int64_t layers = input.weights->config.layers;
  std::vector<Replacement> removals;
  for (int64_t layer = 0; layer < layers; ++layer) removals.push_back({layer, std::nullopt});
  Selection selection;
  selection.scores =
      LossesWith(input.context, input.weights, DepthPlan::Original(layers), removals, LossBatches(task), progress);
  ToPerplexity(selection.scores);
  selection.removed = PickLayers(selection.scores, count, spec.keep_first, spec.keep_last);
  return selection;
}

Selection SelectByPerplexityGreedy(const CriterionTask& task) {
  const auto nothing = [](int64_t) { return std::optional<Stage>(); };
  Selection selection = SelectGreedily(task, nothing);
  ToPerplexity(selection.scores);
  return selection;
}

}  // namespace shiftrt
