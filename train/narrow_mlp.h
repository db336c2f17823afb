// SPDX-License-Identifier: Apache-2.0
// An MLP of few units in the place of a run of removed blocks, as its training begins. Its units are units of the MLPs
// that were removed: row j of gate and up, each times the gain of its block's norm, so that the MLP's own norm has a
// gain of 1. Its down projection is zero: at first it adds nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/objectives.h"
#include "train/text.h"

namespace shiftrt {

// Row `unit` of the gate and up projections of block `layer` of the model.
struct MlpUnit {
  int64_t layer = 0, unit = 0;

  auto operator<=>(const MlpUnit&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 misreads it
};

// The first units of a run's MLPs, in the order of depth. Throws UsageError for the field "replacement" for a number
// that is no multiple of 32 from 32 to the model's width, for more than the run has, and for a family whose MLP has a
// norm that the rows cannot take in: one with a bias, one after the MLP, or one that it shares with the attention.
std::vector<MlpUnit> FirstUnits(const Weights& weights, const ReplacedRun& run, int64_t count);

// The MLP half of block `layer` with these units.
BlockStage NarrowMlp(const Weights& weights, int64_t layer, std::span<const MlpUnit> units);

// The plan of `replaced`, whose runs end with MLPs of replacement.units, with the units of the run's MLPs that would
// change the stream most: those with the largest sum of (a_j |down_j| / |x|)^2 over the first 8,192 tokens that a
// training by `settings` reads. x is the stream that the new MLP reads, a_j what unit j of its block gives on x, and
// down_j its column of the down projection. Each process computes all of it. `poll` is called before each batch; it may
// throw, and may be empty.
DepthPlan WithChosenUnits(const Context& context, const std::shared_ptr<const Weights>& weights,
                          const ReplacementPlan& replaced, const TrainingText& text, const FinetuneSettings& settings,
                          const std::function<void()>& poll = {});

}  // namespace shiftrt
