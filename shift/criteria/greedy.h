// SPDX-License-Identifier: Apache-2.0
// One block after another by the loss that is left: SLEB's search, with or without adapters in the blocks' places.
#pragma once

#include <functional>
#include <optional>

#include "shift/criteria/criteria.h"

namespace shiftrt {

// What would stand in a removed layer's place; nothing: it is skipped.
using StandIn = std::function<std::optional<Stage>(int64_t layer)>;

// Removes the layer with the lowest mean loss, ties to the deeper, and again on what is left. A removed layer's score
// is the loss of the round it went in, a candidate's that stayed the loss of the last round.
Selection SelectGreedily(const CriterionTask& task, const StandIn& stand_in);

// The calibration batches a loss is measured on: all, or those that hold the first tokens=N tokens.
std::vector<Batch> LossBatches(const CriterionTask& task);

}  // namespace shiftrt
