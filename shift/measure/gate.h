// SPDX-License-Identifier: Apache-2.0
// The gate (`--gate`): drops corrections without which the held-out loss is lower.
#pragma once

#include <vector>

#include "include/shiftrt/provenance.h"
#include "runtime/progress.h"
#include "shift/measure/heldout_loss.h"

namespace shiftrt {

struct GatedPlan {
  DepthPlan plan;
  std::vector<GateVerdict> verdicts;  // in the plan's order
};

// Takes out the correction (adapter, or a block's own tensors) without which the loss falls most, and again, until it
// does not fall; then all that are left, if it is lower without any. So the loss is no higher than with all and than
// with none. Cost with k corrections and m taken out: (m + 1) k + 2 losses or less.
GatedPlan Gate(const DepthPlan& plan, HeldOutLoss& loss, Progress& progress);

}  // namespace shiftrt
