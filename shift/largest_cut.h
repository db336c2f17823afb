// SPDX-License-Identifier: Apache-2.0
// The largest cut whose repaired model stays near to the original (PruneSpec::max_divergence).
#pragma once

#include <functional>

#include "shift/job.h"
#include "shift/pipeline.h"

namespace shiftrt {

// Fitted and held-out tokens that the repairs of the search read, and that their divergence is measured on.
constexpr int64_t kCutTokens = 16384, kCutHeldOutTokens = 4096;

// Selects and repairs by a recipe whose amount is a count.
using RepairFunction = std::function<ShiftResult(const ShiftJob& job, const Recipe& recipe)>;

// Repairs cuts of different sizes on kCutTokens of the text, and measures KL(original || repaired) of each on held-out
// text. It begins with a quarter of the units and bisects: about log2(units / 2) repairs, on the assumption that a
// larger cut has a larger divergence. The largest cut that was within the limit is then repaired on the whole text, and
// measured again. Rounding, the gate, merging and the comparison with the pruned model take part in the last repair
// alone. Throws UsageError where there is no held-out text, and where the smallest cut is above the limit.
ShiftResult RepairLargestCut(const ShiftJob& job, const Recipe& recipe, const RepairFunction& repair);

}  // namespace shiftrt
