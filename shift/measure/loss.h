// SPDX-License-Identifier: Apache-2.0
// The mean cross-entropy of a text under depth plans.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/loss.h"
#include "runtime/progress.h"

namespace shiftrt {

// Whole sequences from the start of `batches` until they hold `tokens` tokens, or all.
std::vector<Batch> FirstSequences(const std::vector<Batch>& batches, int64_t tokens);

// Mean over the predicted tokens of all batches, in nats per token. Throws Error if there is none.
double MeanLoss(const Context& context, const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                const std::vector<Batch>& batches, Progress& progress);

// A block of a plan, and the stages that would replace it.
struct Substitute {
  int64_t layer = 0;
  std::vector<Stage> stages;
};
// A block of a plan without `part` of it, and with `stand_in`, if any, in that place.
Substitute WithoutPart(const BlockStage& block, Halves part, const std::optional<Stage>& stand_in);
// The plan with that block replaced. Throws Error when the plan does not run it.
DepthPlan Replaced(const DepthPlan& plan, const Substitute& substitute);

// The mean loss under `plan` with one substitute at a time, in the order given (MeanLosses in engine/score.h). Cost
// with n blocks and all of them candidates: (n + 1) / 2 forward passes and n heads; where the model is split, n of
// both.
std::vector<double> LossesWith(const Context& context, const std::shared_ptr<const Weights>& weights,
                               const DepthPlan& plan, const std::vector<Substitute>& substitutes,
                               const std::vector<Batch>& batches, Progress& progress);

}  // namespace shiftrt
