// SPDX-License-Identifier: Apache-2.0
// Criteria that remove a block, or a half of one, and measure the loss.
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
  const auto& [spec, quota, input, probes, progress] = task;
  const DepthPlan original = DepthPlan::Original(input.weights->config.layers);
  std::vector<Substitute> removals;
  for (int64_t unit = 0; unit < quota.units(); ++unit) {
    const BlockPart part = PartOf(quota.unit(), unit);
    removals.push_back(WithoutPart(BlockStage{part.layer}, part.halves, std::nullopt));
  }
  const std::vector<Batch> batches = LossBatches(task);
  Selection selection;
  selection.scores = LossesWith(input.context, input.weights, original, removals, batches, progress);
  std::vector<double> increases = selection.scores;
  if (quota.by_size()) {
    const double loss = MeanLoss(input.context, input.weights, original, batches, progress);
    for (double& increase : increases) increase -= loss;
  }
  selection.removed = PickUnits(increases, quota);
  ToPerplexity(selection.scores);
  return selection;
}

Selection SelectByPerplexityGreedy(const CriterionTask& task) {
  const auto nothing = [](const BlockPart&) { return std::optional<Stage>(); };
  Selection selection = SelectGreedily(task, nothing);
  ToPerplexity(selection.scores);
  return selection;
}

}  // namespace shiftrt
