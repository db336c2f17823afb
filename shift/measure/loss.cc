// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/loss.h"

#include <span>
#include <utility>

#include "engine/score.h"

namespace shiftrt {

std::vector<Batch> FirstSequences(const std::vector<Batch>& batches, int64_t tokens) {
  std::vector<Batch> first;
  for (const Batch& whole : batches) {
    Batch batch;
    for (int64_t s = 0; s < whole.sequences() && tokens > 0; ++s) {
      const auto sequence = std::span(whole.tokens).subspan(whole.offsets[s], whole.offsets[s + 1] - whole.offsets[s]);
      batch.Add(sequence);
      tokens -= static_cast<int64_t>(sequence.size());
    }
    if (batch.size() > 0) first.push_back(std::move(batch));
  }
  return first;
}

double MeanLoss(const Context& context, const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                const std::vector<Batch>& batches, Progress& progress) {
  return MeanLosses(context, weights, {plan}, batches, "measuring the loss", progress).front();
}

Substitute WithoutPart(const BlockStage& block, Halves part, const std::optional<Stage>& stand_in) {
  Substitute substitute{block.layer, {}};
  const auto keep = [&](Halves half) { substitute.stages.emplace_back(BlockStage{block.layer, half, block.own}); };
  if (RunsAttention(block.halves) && !RunsAttention(part)) keep(Halves::kAttention);
  if (stand_in) substitute.stages.push_back(*stand_in);
  if (RunsMlp(block.halves) && !RunsMlp(part)) keep(Halves::kMlp);
  return substitute;
}

DepthPlan Replaced(const DepthPlan& plan, const Substitute& substitute) {
  DepthPlan replaced = plan;
  const auto at = replaced.stages.erase(replaced.stages.begin() + static_cast<int64_t>(plan.StageOf(substitute.layer)));
  replaced.stages.insert(at, substitute.stages.begin(), substitute.stages.end());
  return replaced;
}

std::vector<double> LossesWith(const Context& context, const std::shared_ptr<const Weights>& weights,
                               const DepthPlan& plan, const std::vector<Substitute>& substitutes,
                               const std::vector<Batch>& batches, Progress& progress) {
  std::vector<DepthPlan> plans;
  plans.reserve(substitutes.size());
  for (const Substitute& substitute : substitutes) plans.push_back(Replaced(plan, substitute));
  return MeanLosses(context, weights, plans, batches, "trying removals", progress);
}

}  // namespace shiftrt
