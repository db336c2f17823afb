// SPDX-License-Identifier: Apache-2.0
// Many settings from few passes: criterion x amount x correction x healing x calibration x token weights x lambda x
// factorization x rank x calibration size x seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "include/shiftrt/recipe.h"
#include "shift/pipeline.h"
#include "shift/recipe_fields.h"

namespace shiftrt {

struct SweepSource {
  // The calibration text of a seed: `samples` samples, one per batch.
  std::function<CalibrationSet(uint64_t seed, int64_t samples)> open;
  std::function<Quality(const DepthPlan&)> measure;
  // The row of a cell that is known already, or null: one that an interrupted sweep left, say. May be empty. A seed of
  // which all cells are known costs nothing.
  std::function<const SweepRow*(const Recipe& recipe, int64_t samples)> known = {};
  // Receives each row as soon as it is complete.
  std::function<void(const SweepRow&)> row;
};

// The model of a sweep, and its progress.
struct SweepJob {
  const Context& context;
  const Model& model;
  Progress& progress;
};

// A seed costs one pass for the criteria that look at text and, per token weighting, one for the sums of all layers
// that any of the selections removes. These sums serve every independent adapter, and larger calibration sizes add to
// the sums of smaller ones. Any other correction takes the same passes per cell as a run of its own (Shift). Selections
// are made once per seed, on the largest size. Throws what ParsePrune's and ParseRank's users throw, before any work
// where it can.
void Sweep(const SweepJob& job, const SweepAxes& axes, const SweepSource& source);

}  // namespace shiftrt
