// SPDX-License-Identifier: Apache-2.0
// Floating-point operations of the parts of a job, from shapes alone. A multiply-add counts as two. Norms, activations
// and other work that grows with the hidden size alone do not count.
#pragma once

#include <cstdint>

#include "models/plan.h"
#include "models/weights.h"
#include "shift/fit/fit.h"

namespace shiftrt {

// Sequences of one length that pass through a model.
struct Sequences {
  int64_t count = 0, length = 0;
  int64_t tokens() const { return count * length; }
};

// FLOP of the products with the weights of all blocks, for one token: two per weight.
double BlockFlopsPerToken(const Weights& weights);
// FLOP of one block or half: products with its weights, and attention (kernels/attention.h).
double BlockFlops(const Weights& weights, const BlockPart& part, const Sequences& text);
// FLOP of the head for so many rows.
double HeadFlops(const ModelConfig& config, int64_t rows);
// FLOP of the ridge sums of one site, (tokens, n) inputs and (tokens, d) updates, in float64 (kernels/gram.h).
double RidgeSumsFlops(int64_t inputs, int64_t hidden, int64_t tokens);
// FLOP, about, of solving one site, and of making the adapter of its rank and measuring it (shift/fit/), in float64.
double SolveFlops(const LambdaSpec& lambda, int64_t inputs, int64_t hidden);
double ReduceFlops(const RankSpec& rank, int64_t hidden);

}  // namespace shiftrt
