// SPDX-License-Identifier: Apache-2.0
// A model that is pruned and repaired as the original of the next repair, for pruning in steps.
#pragma once

#include <span>
#include <vector>

#include "models/model.h"

namespace shiftrt {

// The model that the plan of `saved` runs, as an original: its blocks are the kept ones, counted from 0, each with the
// tensors that it runs with and with the adapters before it (Weights::adapters), and its plan runs all of them. What
// reads weights and plans then sees no difference from a model as it was published. Returns `saved` where that is an
// original. All tensors are views of those of `saved`, which the result keeps alive. Throws UsageError for half blocks,
// for an adapter after the last block, for a model that is split, and for weights that lack the removed blocks.
Model AsOriginal(const Model& saved);

// The plan over the weights of `saved` that computes what `plan` does over those of AsOriginal(saved). An adapter also
// stands for what the adapters before its removed blocks stood for.
DepthPlan OverSaved(const DepthPlan& plan, const Model& saved);

// Translates parts of AsOriginal(saved) to the numbers that they have in `saved`, and back. The latter throws
// UsageError, with the field "prune", for a block that `saved` does not have.
std::vector<BlockPart> NumbersInSaved(std::span<const BlockPart> parts, const Model& saved);
std::vector<BlockPart> NumbersInOriginal(std::span<const BlockPart> parts, const Model& saved);

}  // namespace shiftrt
