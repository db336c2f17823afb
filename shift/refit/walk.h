// SPDX-License-Identifier: Apache-2.0
// Projections of kept blocks fitted again, one after another: each on the stream that the plan with everything fitted
// before it leaves, towards the stream of the original model.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shift/job.h"
#include "shift/refit/projection.h"
#include "shift/sums/streams.h"

namespace shiftrt {

// What is fitted again in the kept blocks behind the first removed one: nothing, their down projections, or their
// output projections and then their down projections.
enum class Heal { kOff, kDown, kAll };
// "off", "down", "all". Throws UsageError for anything else.
Heal ParseHeal(const std::string& text);
const char* Name(Heal heal);

// A correction that is fitted from the activations of the half before a removed run.
struct BlockCorrection {
  SiteInput input = SiteInput::kActivation;  // or kStreamAndActivation
  // From the sums of one run, the last projection of the half before it, and the block that has it: that block, and
  // perhaps an adapter behind it. With kStreamAndActivation, a run that begins at the attention of layer 0 has nothing
  // before it: the sums are of the stream alone (kStream), projection and block are null, and the adapter is all there
  // is.
  std::function<FittedSites(const SiteSums& sums, const Projection* projection, const BlockPtr& block)> fit;
};

struct WalkOptions {
  const BlockCorrection* correction = nullptr;  // of the runs that `plan` leaves bare; null: `plan` has its corrections
  Heal heal = Heal::kOff;
  RidgeOptions ridge;  // of what is healed
  TokenWeighting weighting;
};

struct WalkResult {
  DepthPlan plan;
  std::vector<SiteReport> sites, healed;
  StepSeconds seconds;
};

// `plan` leaves out the parts `removed` (in the order of depth, at least one) of the original model. In that order, for
// each block that is fitted: its output projection towards the original stream behind its attention, then its down
// projection, and what the correction puts behind it, towards the original stream where the next stage of the plan
// begins. Where the attention alone stays in front of a removed run, its output projection takes the place of the down
// projection. A down projection that the plan has changed already stays. Cost: two passes of the model from the block
// before the first removed one on, and the fitted blocks twice. Memory: tokens x hidden x 8 bytes for the two streams,
// and what CheckWalkMemory says. Throws UsageError where there is no block before a run that the correction needs one
// for (kActivation), and for a family that norms the updates. `start`: the streams of the job's text before the block
// in front of the first removed one (WalkStart), where they are already there; it takes their memory.
WalkResult RefitInSequence(const ShiftJob& job, const DepthPlan& plan, const std::vector<BlockPart>& removed,
                           const WalkOptions& options, std::optional<StartStreams> start = std::nullopt);
// The layer before which a walk starts.
inline int64_t WalkStart(const std::vector<BlockPart>& removed) {
  return std::max<int64_t>(0, removed.front().begin() - 1) / 2;
}

// The memory of a fit of n inputs and d outputs in bytes: two sums of 8 (n + 1) (n + 1 + d), for the fitted and the
// held-out tokens, once more as many without their means, and five arrays of 8 n^2 for the solve.
int64_t WalkBytes(int64_t inputs, int64_t hidden);
// Throws Error unless the host has that memory.
void CheckWalkMemory(const Context& context, int64_t inputs, int64_t hidden);

}  // namespace shiftrt
