// SPDX-License-Identifier: Apache-2.0
// How far the residual stream of a shortened model is from the original's: by depth, and as points in a plane.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/decoder.h"
#include "runtime/progress.h"

namespace shiftrt {

// The stream of one depth plan where block `depth` reads it; depth = layers: where the final norm does.
struct DriftPoint {
  int64_t depth = 0;
  double norm = 0;    // median over tokens of the root mean square of a token's stream
  double cosine = 0;  // mean over tokens of the cosine to the original's stream at the same depth
};

// The choice of the tokens that are shown as points.
struct ShownTokens {
  int64_t count = 250;  // about, per plan
  uint64_t seed = 0;    // of t-SNE
};

struct StreamDrift {
  std::vector<std::vector<DriftPoint>> plans;  // per plan: the depths of the blocks that all plans run, and the end
  // Per plan, (shown tokens, 2): see below. The same points by their principal components and by t-SNE.
  std::vector<Matrix<double>> points, neighbours;
};

// Runs every plan over `batches` (the first plan is the original). `points`: the stream at the end of every `n`th
// token, each scaled to a root mean square of 1 as the final norm does, on the two directions in which the tokens of
// all plans together vary most, and by t-SNE (shift/measure/tsne.h) of all plans together; n is such that about
// `shown.count` tokens of each plan are shown. Memory: the streams of one batch at all depths, and shown.count * hidden
// * plans.
StreamDrift MeasureDrift(const Context& context, std::shared_ptr<const Weights> weights,
                         const std::vector<DepthPlan>& plans, const std::vector<Batch>& batches, Progress& progress,
                         ShownTokens shown = {});

}  // namespace shiftrt
