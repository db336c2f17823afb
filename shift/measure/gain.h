// SPDX-License-Identifier: Apache-2.0
// The gain of a whole repair: losses of the original, the pruned and the corrected model on held-out text.
#pragma once

#include "include/shiftrt/provenance.h"
#include "runtime/progress.h"
#include "shift/measure/heldout_loss.h"

namespace shiftrt {

// The plans of one model before and after pruning, and after the repair.
struct RepairPlans {
  const DepthPlan& original;
  const DepthPlan& pruned;
  const DepthPlan& corrected;
};

// The gain of the corrected plan over the pruned one, with its paired standard error over the sequences. A corrected
// plan that equals the pruned one is not measured again. Measures the choice `other`, too, if it is not null.
GainReport MeasureGain(const RepairPlans& plans, HeldOutLoss& loss, Progress& progress, OtherChoice* other = nullptr);

}  // namespace shiftrt
