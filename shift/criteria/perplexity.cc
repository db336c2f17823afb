// Criteria that remove a block and measure the loss.
#include <cmath>

#include "shift/criteria/greedy.h"
#include "shift/criteria/scores.h"
#include "shift/measure/loss.h"

namespace shiftrt {

namespace {

void ToPerplexity(std::vector<double>& losses) {
  for (double& loss : losses) loss = std::exp(loss);
}

}  // namespace

Selection SelectByPerplexity(const PruneSpec& spec, int64_t count, const CriterionInput& input, const StreamFindings&,
                             Progress& progress) {
  const int64_t layers = input.weights->config.layers;
  std::vector<Replacement> removals;
  for (int64_t layer = 0; layer < layers; ++layer) removals.push_back({layer, std::nullopt});
  Selection selection;
  selection.scores = LossesWith(input.context, input.weights, DepthPlan::Original(layers), removals,
                                LossBatches(spec, input), progress);
  ToPerplexity(selection.scores);
  selection.removed = PickLayers(selection.scores, count, spec.keep_first, spec.keep_last);
  return selection;
}

Selection SelectByPerplexityGreedy(const PruneSpec& spec, int64_t count, const CriterionInput& input,
                                   const StreamFindings&, Progress& progress) {
  const auto nothing = [](int64_t) { return std::optional<Stage>(); };
  Selection selection = SelectGreedily(spec, count, input, nothing, progress);
  ToPerplexity(selection.scores);
  return selection;
}

}  // namespace shiftrt
