// SPDX-License-Identifier: Apache-2.0
// Corrections that scale the stream to the size that the removed blocks would have given it.
#pragma once

#include <span>
#include <vector>

#include "shift/corrections/corrections.h"
#include "shift/sums/magnitudes.h"

namespace shiftrt {

// For each site of `input`, MagnitudeProbe::Ratios from before its first block to after its last, over the original
// model and the fitted calibration text, in one pass. Adds a report per site to `fitted`, with the mean of its ratios.
std::vector<std::vector<double>> MeasureRatios(const FitInput& input, const MagnitudeProbe::Transform& transform,
                                               FittedSites& fitted);

// Blocks `layer` .. removed, and the factor by which they change the size of the stream.
struct Cut {
  int64_t layer = 0;
  double scale = 1;
};

// Prune&Comp without a scaled embedding: of the blocks of `plan` after the first of `cuts`, each with what its
// attention and its MLP add to the stream divided by the scales of all cuts before it. To multiply all that writes to
// the stream before a cut by its scale, and to divide all that writes after it, differ by one factor of the whole
// stream, which no norm after a cut sees but for its epsilon. The factors are in o and down and their biases, in the
// types they have. The
// model does not norm its updates.
std::vector<BlockStage> DividedAfter(const Weights& weights, const DepthPlan& plan, std::span<const Cut> cuts);

}  // namespace shiftrt
