// SPDX-License-Identifier: Apache-2.0
// The sequential fit: it runs the text through the original and the corrected model from place to place, and fits what
// a plan wants at each place, on the stream that everything fitted before leaves.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "include/shiftrt/recipe.h"
#include "shift/job.h"
#include "shift/refit/projection.h"
#include "shift/sums/streams.h"

namespace shiftrt {

// The correction that a sequential fit puts in the place of removed parts.
struct SiteCorrection {
  // kStream and kNormed: an adapter in the place of each site. kActivation and kStreamAndActivation: a change of the
  // half before each run, and perhaps an adapter after it.
  SiteInput input = SiteInput::kStream;
  // Fits one site from its sums. `projection` and `block` are the last projection before the site, and the block that
  // has it. Both are null for adapters alone, and for a run that begins at the attention of layer 0, which has nothing
  // before it: its sums are of the stream or its norm alone, and the adapter is all there is.
  std::function<FittedSites(const SiteSums& sums, const Projection* projection, const BlockPtr& block)> fit;
  // kActivation: an adapter on the norm of the stream stands after each changed half. `fit` is called once more for
  // it, with sums of kNormed of the stream that the changed half leaves, and without a projection.
  bool normed = false;
};

struct SequentialFitOptions {
  const SiteCorrection* correction = nullptr;  // for what the plan leaves bare; null: it has its corrections
  Heal heal = Heal::kOff;
  RidgeOptions ridge;  // for projections that are healed
  TokenWeights weighting;
  Calibration mode = Calibration::kDrift;  // how adapters are fitted: kSequential or kDrift
};

struct SequentialFitResult {
  DepthPlan plan;
  std::vector<SiteReport> sites, healed;
  RepairSeconds seconds;
};

// `plan` leaves out the parts `removed` (in the order of depth, at least one) of the original model. In that order, for
// each block that is fitted: its output projection towards the original stream after its attention, then its down
// projection, and what the correction puts after it, towards the original stream where the next stage of the plan
// begins. Where the attention alone stays before a removed run, its output projection takes the place of the down
// projection. A down projection that the plan has changed already stays. Cost: two passes of the model from the block
// before the first removed one on, and the fitted blocks twice. Memory: tokens x hidden x 8 bytes for the two streams,
// and that of the largest fit. Throws Error where WhyNoSequentialFit() says why, and UsageError where there is no block
// before a run that the correction needs one for (kActivation), and for a family that norms the updates. `start`: the
// streams of the job's text before SequentialFitStart(), or before an earlier block, where they are already there; it
// takes their memory.
SequentialFitResult RefitInSequence(const ShiftJob& job, const DepthPlan& plan, const std::vector<BlockPart>& removed,
                                    const SequentialFitOptions& options,
                                    std::optional<StartStreams> start = std::nullopt);
// `healed` with the projections of `fits` as in `before`, the plan that was healed.
DepthPlan Unhealed(const DepthPlan& healed, const DepthPlan& before, const std::vector<FitReport>& fits,
                   const std::shared_ptr<const Weights>& weights);
// The layer before which a sequential fit starts.
inline int64_t SequentialFitStart(const std::vector<BlockPart>& removed) {
  return std::max<int64_t>(0, removed.front().begin() - 1) / 2;
}

// Fits the adapter of one site from its sums.
using SiteFit = std::function<FittedSites(const SiteSums& site, Progress& progress)>;
// Options of adapters that are fitted in sequence. `mode`: kSequential or kDrift.
struct SequenceOptions {
  Calibration mode = Calibration::kDrift;
  TokenWeights weighting = {};
  SiteInput input = SiteInput::kStream;  // what the adapters read: the stream, or kNormed
  const DepthPlan* plan = nullptr;       // the blocks around the sites; null: the original's
};
// An adapter in the place of each site of the original model. Cost: one pass of the model (kDrift: two) and a fit
// between any two sites. The stream of the whole calibration text is held while it goes from site to site: tokens x
// hidden x 4 bytes, twice that for kDrift. `start`: the streams of the job's text before the first site, or before an
// earlier block, where they are already there; it takes their memory. Throws Error where the host has no memory for the
// sums of a site.
FittedSites FitInSequence(const ShiftJob& job, const std::vector<Site>& sites, const SequenceOptions& options,
                          const SiteFit& fit, std::optional<StartStreams> start = std::nullopt);

// Why a fit of so many inputs and outputs cannot be made, or "" if it can: the host lacks that memory, or `lambda`
// needs an eigendecomposition that is too large for it.
std::string WhyNoSequentialFit(const Context& context, int64_t inputs, int64_t hidden, const LambdaSpec& lambda);

}  // namespace shiftrt
