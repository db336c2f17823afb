// SPDX-License-Identifier: Apache-2.0
/// \file
/// The main job in one call: choose layers, remove them, and repair the model without training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// What to remove and how to repair. Each text field takes the words that the option of the command line takes, which
/// `shiftrt run --help` and docs/method.md explain.
struct RepairSettings {
  /// What is removed: "CRITERION:AMOUNT", for example "bi:0.25", "streamline:8" or, for half blocks,
  /// "bi:0.25,unit=half"; or "layers=3.attn,5,8-10".
  std::string prune = "bi:0.25";
  /// Calibration text, "FILE[:samples[xtokens]]", samples of 512 tokens and 256 of them by default; empty: the file
  /// calibration.txt beside the model.
  std::string text = {};
  /// What repairs the model: "lra" (linear residual adapters), one of the baselines, "none", or "auto".
  std::string correction = "lra";
  /// The rank of the adapters: a number, "full", "energy:SHARE" or "budget:PARAMETERS".
  std::string rank = "64";
  /// The ridge penalty: "gcv", "holdout", a number, or a number followed by "rel".
  std::string lambda = "gcv";
  bool penalize_bias = false;  ///< penalise the bias of the adapters too
  /// How an adapter of low rank is made: "rrr", "svd" or "svd-refit".
  std::string factorization = "rrr";
  /// On which stream the adapters are fitted: "independent", "sequential", "drift", or "auto", which is drift for
  /// linear residual adapters without a budget of parameters, and independent for everything else.
  std::string calibration_mode = "auto";
  /// How tokens are weighted in the fit: "none", or any of "norm", "gradient", "first:W" and "massive:W" with
  /// commas between them.
  std::string token_weight = "none";
  bool span = false;  ///< one adapter for each run of neighbouring removed blocks
  bool gate = false;  ///< take out adapters without which the loss on held-out text is lower
  /// Projections of the kept blocks behind the first removed one that are fitted again: "off", "down" or "all".
  std::string heal = "off";
  std::string merge = "off";  ///< whether neighbouring adapters become one: "off", "full" or "lowrank"
  uint64_t seed = 0;          ///< of the choice of samples, and of criteria that draw random numbers
};

/// The fit in the place of a removed block, or of a run of them.
struct RepairedSite {
  std::string name;             ///< what it stands for: "3", "3-6", or with halves of blocks "3.attn" or "3.mlp-6"
  std::vector<int64_t> layers;  ///< layers of the original model of which it stands for a block or a half, ascending
  int64_t rank = 0;             ///< rank of the adapter
  double lambda = 0;            ///< ridge penalty that was used
  double r2_fit = 0;            ///< share of the blocks' update that is explained, on the fitted text; at most 1
  double r2_heldout = 0;        ///< the same on calibration text that was not fitted; NaN without such text
  std::string warning;          ///< empty, or what is doubtful about the fit, for people
};

/// What PruneAndRepair() gives.
struct RepairResult {
  std::string criterion;         ///< by which the layers were chosen
  std::vector<double> scores;    ///< of the criterion, lowest removed first; empty for "layers="
  std::vector<int64_t> removed;  ///< layers of the original model of which the whole block is removed, ascending
  std::vector<std::string> removed_halves;  ///< half blocks that are removed besides, as "3.attn" or "5.mlp", ascending
  std::vector<RepairedSite> sites;          ///< empty where nothing was fitted
  LanguageModel pruned;                     ///< without the layers and without a repair
  LanguageModel corrected;                  ///< with the repair
  std::optional<LanguageModel> merged;      ///< with neighbouring adapters merged, where the settings ask for it
};

/// Chooses layers, collects sums over the calibration text and fits the repair. The models of the result share the
/// weights of `model`.
/// \param model an original model; one that is already pruned is a UsageError
/// \param settings what to remove and how to repair
/// \param resources what the job may use of the machine
/// \param progress receives reports; null: none are made
/// \return the layers and the models
/// \throws UsageError with the name of a field for a setting that makes no sense; Error for calibration text that is
///     missing, malformed or too short, and for numerical failure; OutOfMemory; Interrupted after RequestInterrupt()
RepairResult PruneAndRepair(const LanguageModel& model, const RepairSettings& settings = {},
                            const Resources& resources = {}, Progress* progress = nullptr);

}  // namespace shiftrt
