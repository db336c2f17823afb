// SPDX-License-Identifier: Apache-2.0
/// \file
/// Many recipes from few passes over calibration text: every combination of criteria, amounts, corrections and their
/// settings, sizes of the calibration text and seeds, each measured on held-out text and on zero-shot suites.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/evaluate.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/recipe.h"
#include "shiftrt/resources.h"

namespace shiftrt {

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
