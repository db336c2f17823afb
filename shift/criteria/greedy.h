// SPDX-License-Identifier: Apache-2.0
// One block, or half of one, after another by the loss that is left: SLEB's search, with or without adapters in the
// blocks' places.
#pragma once

#include <functional>
#include <optional>

#include "shift/criteria/criteria.h"

namespace shiftrt {

// The stage in place of a removed part; none: it is skipped.
using StandIn = std::function<std::optional<Stage>(const BlockPart& part)>;

// Removes the unit whose removal raises the mean loss least per size, on a tie the deeper one, and repeats this as long
// as the quota admits one. The score of a removed unit is the loss of the round in which it was removed; that of a kept
// unit is the loss of the last round in which it could have been.
Selection SelectGreedily(const CriterionTask& task, const StandIn& stand_in);

// The calibration batches a loss is measured on: all, or those that hold the first tokens=N tokens.
std::vector<Batch> LossBatches(const CriterionTask& task);

}  // namespace shiftrt
