// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/gate.h"

#include <algorithm>

namespace shiftrt {

namespace {

// The plan without the correction at index `stage`.
DepthPlan Without(const DepthPlan& plan, size_t stage) { return plan.With(stage, plan.stages[stage].Uncorrected()); }

}  // namespace

GatedPlan Gate(const DepthPlan& plan, HeldOutLoss& loss, Progress& progress) {
  GatedPlan gated{plan, {}};
  for (const Stage& stage : plan.stages)
    if (!stage.CorrectedParts().empty()) gated.verdicts.push_back({stage.CorrectedParts(), 0, 0, true});
  progress.Begin("gating", static_cast<int64_t>(gated.verdicts.size()));
  double with = loss(plan);
  while (true) {
    GateVerdict* worst = nullptr;
    DepthPlan better;
    double lowest = with;
    for (size_t s = 0; s < gated.plan.stages.size(); ++s) {
      const std::vector<BlockPart> parts = gated.plan.stages[s].CorrectedParts();
      if (parts.empty()) continue;
      DepthPlan without = Without(gated.plan, s);
      GateVerdict& verdict = *std::find_if(gated.verdicts.begin(), gated.verdicts.end(),
                                           [&](const GateVerdict& v) { return v.parts == parts; });
      verdict.with = with;
      verdict.without = loss(without);
      if (verdict.without >= lowest) continue;
      lowest = verdict.without;
      worst = &verdict;
      better = std::move(without);
    }
    if (worst == nullptr) break;
    worst->kept = false;
    gated.plan = std::move(better);
    with = lowest;
    progress.Advance(1);
  }
  // Each remaining correction may lower the loss with the others while the plan without any has a lower loss still.
  DepthPlan bare = gated.plan.Uncorrected();
  if (const double without = loss(bare); without < with) {
    for (GateVerdict& verdict : gated.verdicts)
      if (verdict.kept) verdict = {verdict.parts, with, without, false};
    gated.plan = std::move(bare);
  }
  progress.End();
  return gated;
}

}  // namespace shiftrt
