#include "shift/measure/gate.h"

#include <algorithm>

namespace shiftrt {

namespace {

// The layers of the correction at a stage; none where it is a block as it was.
std::vector<int64_t> CorrectedBy(const Stage& stage) {
  if (const auto* adapter = std::get_if<AdapterStage>(&stage)) return adapter->layers;
  const auto& block = std::get<BlockStage>(stage);
  return block.folded ? std::vector<int64_t>{block.layer} : std::vector<int64_t>{};
}

DepthPlan Without(DepthPlan plan, size_t stage) {
  if (auto* block = std::get_if<BlockStage>(&plan.stages[stage])) {
    block->folded = nullptr;
  } else {
    plan.stages.erase(plan.stages.begin() + static_cast<int64_t>(stage));
  }
  return plan;
}

DepthPlan WithoutAny(DepthPlan plan) {
  for (size_t s = plan.stages.size(); s-- > 0;)
    if (!CorrectedBy(plan.stages[s]).empty()) plan = Without(std::move(plan), s);
  return plan;
}

}  // namespace

GatedPlan Gate(const DepthPlan& plan, HeldOutLoss& loss, Progress& progress) {
  GatedPlan gated{plan, {}};
  for (const Stage& stage : plan.stages)
    if (!CorrectedBy(stage).empty()) gated.verdicts.push_back({CorrectedBy(stage), 0, 0, true});
  progress.Begin("gating", static_cast<int64_t>(gated.verdicts.size()));
  double with = loss(plan);
  while (true) {
    GateVerdict* worst = nullptr;
    DepthPlan better;
    double lowest = with;
    for (size_t s = 0; s < gated.plan.stages.size(); ++s) {
      const std::vector<int64_t> layers = CorrectedBy(gated.plan.stages[s]);
      if (layers.empty()) continue;
      DepthPlan without = Without(gated.plan, s);
      GateVerdict& verdict = *std::find_if(gated.verdicts.begin(), gated.verdicts.end(),
                                           [&](const GateVerdict& v) { return v.layers == layers; });
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
  // Each may serve beside the others where all together do not.
  DepthPlan bare = WithoutAny(gated.plan);
  if (const double without = loss(bare); without < with) {
    for (GateVerdict& verdict : gated.verdicts)
      if (verdict.kept) verdict = {verdict.layers, with, without, false};
    gated.plan = std::move(bare);
  }
  progress.End();
  return gated;
}

}  // namespace shiftrt
