// SPDX-License-Identifier: Apache-2.0
// The corrections, which replace removed blocks (docs/dev/method.md). To add a correction, write corrections/<name>.cc
// with its fit, and add its row to the table of corrections.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shift/fit/fit.h"
#include "shift/job.h"
#include "shift/refit/sequential_fit.h"
#include "shift/setting.h"

namespace shiftrt {

// The data from which a correction is fitted, in addition to the model's weights.
enum class Needs {
  kNothing,     // nothing else
  kStreamSums,  // sums of the residual stream before each site (SiteInput::kStream)
  kNormedSums,  // the same of its norm (SiteInput::kNormed)
  kMlpSums,     // sums of the MLP's output of the block before each site (SiteInput::kMlpBefore)
  // Sums of what the half before each site gives on the corrected stream (SiteInput::kActivation), alone or with its
  // output (SiteInput::kStreamAndActivation); one site after another
  kActivationSums,
  kStreamAndActivationSums,
  // kActivationSums, and then sums of the norm of the stream that the half leaves with its new projection
  kActivationThenNormedSums,
  kMagnitudes,  // how much the blocks of each site change the size of the stream (shift/sums/magnitudes.h)
  kText,        // the calibration text, for passes of its own: it chooses its recipe itself
};

// The replacement of removed blocks.
enum class Makes {
  kNothing,
  kAdapters,     // an adapter in the place of each removed block, or of each run of them (Recipe::span)
  kRunAdapters,  // an adapter in the place of each run
  kChanges,      // kept blocks with tensors of their own; a site is a run
  kBoth,         // both of the above
};

struct FitInput {
  const ShiftJob& job;
  const std::vector<Site>& sites;            // to correct, ascending
  const std::vector<const SiteSums*>& sums;  // one per site where the correction needs sums, otherwise empty
  const FitOptions& options;
  // For a correction that needs sums of activations: the last projection before the one site, and its block.
  const Projection* projection = nullptr;
  BlockPtr before = nullptr;
};

struct Correction {
  std::string_view name;     // in options, files and tables
  std::string_view summary;  // a few words for lists of corrections
  // For tables and charts. {lra} becomes "LRA 64" or "full LRA", {rank} the rank as given, and {span} "span " if one
  // adapter replaces a whole run of removed blocks.
  std::string_view label;
  Needs needs;
  Makes makes;
  SettingSet accepts;
  // The mode that calibration mode auto stands for. Drift is better for linear residual adapters on a real model
  // (docs/results/smollm2.md).
  Calibration usual_mode;
  // Throws what SolveRidge throws.
  FittedSites (*fit)(const FitInput& input);

  // True if a site can be one removed block.
  bool per_block() const { return makes == Makes::kAdapters; }
  bool adapters() const { return per_block() || makes == Makes::kRunAdapters || makes == Makes::kBoth; }
  bool changes_blocks() const { return makes == Makes::kChanges || makes == Makes::kBoth; }
  // True if its adapters read the normed stream.
  bool normed_adapters() const { return needs == Needs::kNormedSums || needs == Needs::kActivationThenNormedSums; }
  bool needs_sums() const {
    return needs == Needs::kStreamSums || needs == Needs::kNormedSums || needs == Needs::kMlpSums;
  }
  // True if the caller chooses the calibration mode.
  bool takes_recipe() const { return accepts.has(Setting::kMode); }
  // True if it is always fitted in sequence (shift/refit/sequential_fit.h), and so with drift.
  bool fitted_in_sequence() const {
    return needs == Needs::kActivationSums || needs == Needs::kStreamAndActivationSums ||
           needs == Needs::kActivationThenNormedSums;
  }
  // The inputs of the first sums of each run, of a correction that is fitted in sequence.
  SiteInput first_input() const {
    return needs == Needs::kStreamAndActivationSums ? SiteInput::kStreamAndActivation : SiteInput::kActivation;
  }
  // True if it uses FitOptions::rank, or FitOptions::ridge.
  bool has_rank() const { return accepts.has(Setting::kRank); }
  bool has_lambda() const { return accepts.has(Setting::kLambda); }
  bool operator==(const Correction& other) const { return this == &other; }
};

// The table: one row per correction. The first is the default.
const std::vector<Correction>& Corrections();
// Throws UsageError, listing the corrections known, for a name that is not among them.
const Correction& FindCorrection(std::string_view name);
// Why a correction does not go with these settings; empty if it does.
std::string WhyRefused(const Correction& correction, SettingSet used);
// The correction in the form that a sequential fit takes. It must be fitted in sequence, and the references must
// outlive the result.
SiteCorrection InSequence(const Correction& correction, const ShiftJob& job, const FitOptions& options);
// "sequential, token weights norm, rrr, lambda gcv"; "joint, token weights none, lambda gcv"
std::string Format(const FitRecipe& recipe);
// The label filled in, as "span LRA 64".
std::string Label(const Correction& correction, const RankSpec& rank, bool span);

}  // namespace shiftrt
