// SPDX-License-Identifier: Apache-2.0
/// \file
/// Many recipes from few passes over calibration text: every combination of criteria, amounts, corrections and their
/// settings, sizes of the calibration text and seeds, each measured on held-out text and on zero-shot suites.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/evaluate.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/recipe.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// The values that a sweep tries, at least one of each. `prunes` and `seeds` must not repeat a value.
struct SweepAxes {
  std::vector<PruneSpec> prunes = {};                                         ///< what is removed
  std::vector<std::string> corrections = {"lra"};                             ///< names that CorrectionNames() lists
  std::vector<Calibration> modes = {Calibration::kIndependent};               ///< Recipe::mode
  std::vector<TokenWeights> weightings = {{}};                                ///< Recipe::weighting
  std::vector<LambdaSpec> lambdas = {{}};                                     ///< Recipe::lambda
  std::vector<Factorization> factorizations = {Factorization::kReducedRank};  ///< Recipe::factorization
  std::vector<RankSpec> ranks = {{}};                                         ///< Recipe::rank
  std::vector<Heal> heals = {Heal::kOff};                                     ///< Recipe::heal
  std::vector<int64_t> samples = {256};  ///< samples of calibration text, every eighth of which is held out
  std::vector<uint64_t> seeds = {0};     ///< Recipe::seed
  bool penalize_bias = false;            ///< Recipe::penalize_bias
  /// If there are any, the sweep takes these instead of Combinations(). Their prune, seed and text are not read,
  /// and span, gate, merge and gram must be unset.
  std::vector<Recipe> recipes = {};
};
/// \param axes the values of corrections, modes, weightings, lambdas, factorizations, ranks and heals
/// \return every combination of them, or else SweepAxes::recipes, each once: a setting that a correction does not read
///     has its default
/// \throws UsageError for an unknown correction
std::vector<Recipe> Combinations(const SweepAxes& axes);

/// The scores by which models are compared.
struct Quality {
  /// The value of what was not measured: NaN.
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  double perplexity = 0;          ///< on held-out text
  double accuracy = kNone;        ///< mean over zero-shot suites, between 0 and 1; NaN without suites
  double accuracy_error = kNone;  ///< standard error of the accuracy over the items; NaN without suites
};

/// One cell of a sweep: its settings and its results.
struct SweepRow {
  Recipe recipe = {};                   ///< the settings with the seed, without the text; see Combinations()
  int64_t samples = 0;                  ///< samples of calibration text
  std::vector<BlockPart> removed = {};  ///< ascending
  int64_t tokens = 0;                   ///< fitted tokens; 0 if nothing is fitted
  double r2_fit = 0;                    ///< mean over the fits of FitReport::r2_fit; NaN if nothing is fitted
  double r2_heldout = 0;                ///< mean over the fits of FitReport::r2_heldout; NaN if nothing is fitted
  int64_t parameters = 0;               ///< parameters of all adapters together
  std::string chosen = {};              ///< TrialReport::recipe of the trial that the correction "auto" chose
  Quality original = {};                ///< quality of the original model
  Quality pruned = {};                  ///< quality without the removed blocks and without a repair
  Quality corrected = {};               ///< quality with the repair
};

/// The means over rows that differ in their seeds alone.
struct SweepSummary {
  SweepRow first = {};               ///< the first of the rows
  int64_t seeds = 0;                 ///< the number of rows
  Quality original = {};             ///< mean of SweepRow::original
  Quality pruned = {};               ///< mean of SweepRow::pruned
  Quality corrected = {};            ///< mean of SweepRow::corrected
  Quality pruned_deviation = {};     ///< standard deviation (n - 1) of SweepRow::pruned; 0 for one seed
  Quality corrected_deviation = {};  ///< standard deviation (n - 1) of SweepRow::corrected; 0 for one seed
  double r2_fit = 0;                 ///< mean of SweepRow::r2_fit
  double r2_heldout = 0;             ///< mean of SweepRow::r2_heldout
  std::string chosen = {};           ///< values of SweepRow::chosen, each once, separated by "; "
};
/// \param rows rows of a sweep
/// \return one summary per setting, in the order of their first rows
std::vector<SweepSummary> Summarize(const std::vector<SweepRow>& rows);

/// The texts and suites of a sweep, and what it reports.
struct SweepSettings {
  /// Calibration text; without a source the file calibration.txt next to the model. SweepAxes::samples decides how many
  /// samples are read.
  CalibrationSpec calibration = {};
  HeldOutText heldout = {};       ///< the text of the perplexity
  std::string protocol = "gptq";  ///< protocol of the perplexity: "gptq" or "seq128"
  Suites suites = {};             ///< suites of the accuracy; those that count no right answers are left out
  /// Finished cells are recorded here, and an interrupted sweep continues from it. Remove it in the end. Empty: none.
  std::filesystem::path journal = {};
  /// Receives each row as soon as it is complete, in every process.
  std::function<void(const SweepRow& row)> done = {};
  /// Receives what a user should know, as words that continue "shiftrt: "; in the first process alone.
  std::function<void(const std::string& message)> tell = {};
  Progress* progress = nullptr;  ///< receives reports; null: none are made
};

/// The rows of a sweep, and the texts and suites that it read.
struct SweepResult {
  std::vector<SweepRow> rows = {};         ///< one per cell
  std::string calibration = {};            ///< CalibrationReport::source; empty if all cells come from the journal
  std::vector<std::string> averaged = {};  ///< the suites of the accuracy, as people write them, and their items
};

/// Repairs the model by every recipe and measures the results. A seed takes one pass over the calibration text for the
/// criteria that read it and, per token weighting, one for the sums of all layers that any criterion removes. These
/// serve every independent fit, and larger sizes of the text add to the sums of smaller ones. Any other correction
/// takes the passes of Repair() per cell.
/// \param model an original model; one that is pruned, corrected or fine-tuned is a UsageError
/// \param axes what is tried
/// \param settings texts, suites, files and reports
/// \param resources what the sweep may use of the machine
/// \return the rows
/// \throws UsageError with the name of a field for a setting that makes no sense, before any work; Error for text that
///     is missing, malformed or too short, and for numerical failure; OutOfMemory; Interrupted after RequestInterrupt()
SweepResult Sweep(const LanguageModel& model, const SweepAxes& axes, const SweepSettings& settings,
                  const Resources& resources = {});

}  // namespace shiftrt
