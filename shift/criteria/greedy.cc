// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/greedy.h"

#include <limits>

#include "shift/measure/loss.h"

namespace shiftrt {

std::vector<Batch> LossBatches(const CriterionTask& task) {
  const int64_t tokens = task.spec.Option("tokens");
  return tokens == 0 ? *task.input.calibration : FirstSequences(*task.input.calibration, tokens);
}

Selection SelectGreedily(const CriterionTask& task, const StandIn& stand_in) {
  const CriterionInput& input = task.input;
  const std::vector<Batch> batches = LossBatches(task);
  Quota quota = task.quota;
  Selection selection;
  selection.scores.assign(quota.units(), std::numeric_limits<double>::quiet_NaN());
  DepthPlan plan = DepthPlan::Original(input.weights->config.layers);
  // Only the increase of the loss can be compared per size; the loss itself ranks units of one size.
  double loss = quota.by_size() ? MeanLoss(input.context, input.weights, plan, batches, task.progress) : 0;
  while (true) {
    std::vector<int64_t> units;
    std::vector<Substitute> candidates;
    for (int64_t unit = 0; unit < quota.units(); ++unit) {
      if (!quota.Admits(unit)) continue;
      const BlockPart part = PartOf(quota.unit(), unit);
      const BlockStage& block = plan.stages[plan.StageOf(part.layer)].block();
      units.push_back(unit);
      candidates.push_back(WithoutPart(block, part.halves, stand_in(part)));
    }
    if (units.empty()) break;
    const std::vector<double> losses =
        LossesWith(input.context, input.weights, plan, candidates, batches, task.progress);
    std::vector<double> costs;
    for (size_t i = 0; i < units.size(); ++i) {
      selection.scores[units[i]] = losses[i];
      costs.push_back(quota.CostPerSize(units[i], losses[i] - loss));
    }
    const int64_t best = Ranking(costs, 0, std::ssize(costs)).front();
    if (quota.by_size()) loss = losses[best];
    plan = Replaced(plan, candidates[best]);
    quota.Take(units[best]);
  }
  selection.removed = quota.Removed();
  return selection;
}

}  // namespace shiftrt
