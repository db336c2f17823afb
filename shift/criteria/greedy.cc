// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/greedy.h"

#include <algorithm>
#include <limits>

#include "shift/measure/loss.h"

namespace shiftrt {

std::vector<Batch> LossBatches(const CriterionTask& task) {
  const int64_t tokens = task.spec.Option("tokens");
  return tokens == 0 ? *task.input.calibration : FirstSequences(*task.input.calibration, tokens);
}

Selection SelectGreedily(const CriterionTask& task, const StandIn& stand_in) {
  const auto& [spec, count, input, probes, progress] = task;
  const int64_t layers = input.weights->config.layers;
  const std::vector<Batch> batches = LossBatches(task);
  Selection selection;
  selection.scores.assign(layers, std::numeric_limits<double>::quiet_NaN());
  DepthPlan plan = DepthPlan::Original(layers);
  std::vector<Replacement> candidates;
  for (int64_t layer = spec.keep_first; layer < layers - spec.keep_last; ++layer)
    candidates.push_back({layer, stand_in(layer)});
  for (int64_t round = 0; round < count; ++round) {
    const std::vector<double> losses = LossesWith(input.context, input.weights, plan, candidates, batches, progress);
    for (size_t i = 0; i < candidates.size(); ++i) selection.scores[candidates[i].layer] = losses[i];
    const int64_t best = PickLayers(losses, 1, 0, 0)[0];
    plan = Replaced(plan, candidates[best]);
    selection.removed.push_back(candidates[best].layer);
    candidates.erase(candidates.begin() + best);
  }
  std::sort(selection.removed.begin(), selection.removed.end());
  return selection;
}

}  // namespace shiftrt
