// SPDX-License-Identifier: Apache-2.0
// Rounds the matrices of a plan to types of fewer bits, on the streams that the rounded model has.
#pragma once

#include "include/shiftrt/provenance.h"
#include "include/shiftrt/recipe.h"
#include "shift/job.h"

namespace shiftrt {

struct QuantisedPlan {
  DepthPlan plan;
  QuantiseReport report;
};

// `plan` with the matrices of its blocks, the head and the embedding table in the types of the mixture. A matrix that
// has its type already stays as it is. The text is the fitted one of the job, of which at most kRoundingTokens tokens
// are read; rounding to the nearest number reads none. Cost: two passes of the plan, 2 n^2 FLOP per token for each set
// of n inputs, and RoundMatrix() of each matrix. Memory: the streams, tokens x hidden x 4 bytes, and 20 n^2 bytes for
// the largest n. Throws UsageError for a model that is split over processes and for a GPU, whose products read no
// quantised matrices, and Error as RoundMatrix() does.
QuantisedPlan Quantise(const ShiftJob& job, const DepthPlan& plan, const QuantiseSpec& spec);

// Throws UsageError for a model that is split over processes, and for a GPU, whose products read no quantised matrices.
void CheckRounds(const Context& context, const Weights& weights);
// Throws UsageError for a rounding by text of a model with mixtures of experts.
void CheckRounds(const QuantiseSpec& spec, const ModelConfig& config);

// The tokens of the text that are read.
constexpr int64_t kRoundingTokens = 16384;

// `plan` with the tensors of their own that the blocks and the output of `from` have, where it has the model's.
DepthPlan WithTensorsOf(const DepthPlan& from, DepthPlan plan);

}  // namespace shiftrt
