// SPDX-License-Identifier: Apache-2.0
// Prune&Comp's iterative selection (Chen et al., 2025): the block of lowest influence goes, the size that it gave the
// stream is made good, and the next one is chosen on what is left.
#include <algorithm>
#include <limits>
#include <numeric>

#include "shift/corrections/scaling.h"
#include "shift/criteria/influence.h"

namespace shiftrt {

Selection SelectByPruneComp(const CriterionTask& task) {
  const auto& [spec, quota, input, probes, progress] = task;
  const int64_t layers = input.weights->config.layers;
  Selection selection;
  selection.scores.assign(layers, std::numeric_limits<double>::quiet_NaN());
  DepthPlan plan = DepthPlan::Original(layers);
  std::vector<Cut> cuts;
  while (std::ssize(cuts) < quota.count()) {
    const std::vector<int64_t> kept = plan.KeptLayers();
    InfluenceProbe influence(kept, layers);
    influence.Want(Unit::kBlock, 1);
    std::vector<StreamSpan> spans;
    for (size_t i = 0; i < kept.size(); ++i) spans.push_back({kept[i], i + 1 < kept.size() ? kept[i + 1] : layers});
    MagnitudeProbe magnitudes(input.context, spans, input.weights->config.hidden);
    Pass pass(input.context, input.weights);
    pass.Add(plan, influence);
    pass.Add(plan, magnitudes);
    pass.Run("selecting layers", *input.calibration, progress);

    const std::vector<double> scores = influence.Found(Unit::kBlock, 1).Scores();
    std::vector<double> free;
    std::vector<size_t> index;  // for each of them its index in `kept`
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] < spec.keep_first || kept[i] >= layers - spec.keep_last) continue;
      selection.scores[kept[i]] = scores[i];
      free.push_back(scores[i]);
      index.push_back(i);
    }
    const size_t chosen = index[Ranking(free, 0, std::ssize(free)).front()];
    const std::vector<double> ratios = magnitudes.Ratios(chosen);
    cuts.push_back(
        {kept[chosen], std::accumulate(ratios.begin(), ratios.end(), 0.0) / static_cast<double>(ratios.size())});
    selection.removed.push_back(kept[chosen]);
    plan = DepthPlan::Pruned(layers, selection.removed);
    for (const BlockStage& block : DividedAfter(*input.weights, plan, cuts))
      plan = plan.With(plan.StageOf(block.layer), block);
  }
  std::ranges::sort(selection.removed, {}, &BlockPart::layer);
  return selection;
}

}  // namespace shiftrt
