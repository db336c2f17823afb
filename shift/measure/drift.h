// SPDX-License-Identifier: Apache-2.0
// How far the residual stream of a shortened model is from the original's: by depth, and as points in a plane.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/decoder.h"
#include "include/shiftrt/measurements.h"
#include "runtime/progress.h"
#include "shift/measure/tsne.h"

namespace shiftrt {

// The choice of the tokens that are shown as points.
struct ShownTokens {
  int64_t count = 250;                   // about, per plan
  uint64_t seed = 0;                     // the seed of t-SNE
  int steps = TsneOptions().iterations;  // steps of t-SNE
};

// Runs every plan over `batches` (the first plan is the original). `components`: the stream at the end of every `n`th
// token, each scaled to a root mean square of 1 as the final norm does, on the two directions in which the tokens of
// all plans together vary most, and by t-SNE (shift/measure/tsne.h) of all plans together; n is such that about
// `shown.count` tokens of each plan are shown. Memory: the streams of one batch at all depths, and shown.count * hidden
// * plans.
DriftReport MeasureDrift(const Context& context, std::shared_ptr<const Weights> weights,
                         const std::vector<DepthPlan>& plans, const std::vector<Batch>& batches, Progress& progress,
                         ShownTokens shown = {});

}  // namespace shiftrt
