// SPDX-License-Identifier: Apache-2.0
// Many settings from few passes: criterion x amount x correction x healing x calibration x token weights x lambda x
// factorization x rank x calibration size x seed.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "shift/pipeline.h"

namespace shiftrt {

struct SweepAxes {
  std::vector<PruneSpec> prunes;
  std::vector<const Correction*> corrections = {&Corrections().front()};  // rows of the table
  std::vector<Calibration> modes = {Calibration::kIndependent};
  std::vector<TokenWeighting> weightings = {{}};
  std::vector<LambdaSpec> lambdas = {{}};
  std::vector<Factorization> factorizations = {Factorization::kReducedRank};
  std::vector<RankSpec> ranks = {{}};
  std::vector<Heal> heals = {Heal::kOff};
  std::vector<int64_t> samples = {256};  // samples of calibration text, every eighth of which is held out
  std::vector<uint64_t> seeds = {0};
  bool penalize_bias = false;
  // If not empty, the sweep runs these instead of every combination of corrections, modes, weightings, lambdas,
  // factorizations, ranks and heals.
  std::vector<ShiftOptions> settings = {};
};
// The settings of a cell without seed and calibration size, as text. Two settings have the same text only if they are
// equal.
std::string SettingText(const ShiftOptions& options);
// Every combination of those axes, each once. A setting that a correction does not use has its default.
std::vector<ShiftOptions> Combinations(const SweepAxes& axes);

// The scores by which depth plans are compared.
struct Quality {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  double perplexity = 0;  // on held-out text
  // Mean over zero-shot suites, 0 .. 1, and its standard error over their items; NaN where none are run.
  double accuracy = kNone, accuracy_error = kNone;
};

// One cell: its settings and results. Settings that a correction does not use have their defaults of ShiftOptions.
struct SweepRow {
  ShiftOptions options;
  int64_t samples = 0;

  std::vector<BlockPart> removed;
  int64_t tokens = 0;                 // fitted tokens; 0 if nothing is fitted
  double r2_fit = 0, r2_heldout = 0;  // means over sites; NaN without
  int64_t parameters = 0;             // parameters of all adapters together
  std::string chosen;                 // the recipe, where the correction chooses one
  Quality original, pruned, corrected;
};

struct SweepSource {
  // The calibration text of a seed: `samples` samples, one per batch.
  std::function<CalibrationSet(uint64_t seed, int64_t samples)> open;
  std::function<Quality(const DepthPlan&)> measure;
  // The row of a cell that is known already, or null: one that an interrupted sweep left, say. May be empty. A seed of
  // which all cells are known costs nothing.
  std::function<const SweepRow*(const ShiftOptions& options, int64_t samples)> known = {};
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

// Mean and standard deviation (n - 1; 0 for one) over the seeds of what is otherwise one setting, in order of the
// first.
struct SweepSummary {
  SweepRow first;
  int64_t seeds = 0;
  Quality original, pruned, corrected, pruned_deviation, corrected_deviation;
  double r2_fit = 0, r2_heldout = 0;
  std::string chosen;  // the recipes chosen with the single seeds, each once, separated by "; "
};
std::vector<SweepSummary> Summarize(const std::vector<SweepRow>& rows);

}  // namespace shiftrt
