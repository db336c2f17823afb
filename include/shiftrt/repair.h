// SPDX-License-Identifier: Apache-2.0
/// \file
/// The main job in one call: choose layers, remove them, and repair the model without training.
#pragma once

#include <filesystem>
#include <optional>

#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/recipe.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// What Repair() gives.
struct RepairResult {
  RepairReport report;                  ///< what was removed and how well the fits explain it
  LanguageModel pruned;                 ///< without the removed layers and without a repair
  LanguageModel corrected;              ///< with the repair
  std::optional<LanguageModel> merged;  ///< with neighbouring adapters merged, where the recipe asks for it
};

/// Chooses layers, collects sums over the calibration text and fits the repair. The models of the result share the
/// weights of `model`, and LanguageModel::MadeBy() of each says how it was made.
/// \param model an original model; one that is already pruned is a UsageError
/// \param recipe what to remove and how to repair
/// \param resources what the job may use of the machine
/// \param progress receives reports; null: none are made
/// \param keep a directory in which the selection and the fit are kept, so that the same call takes them from there if
///     what follows is interrupted; another recipe, model or text replaces them. Remove it in the end. Empty: nothing
///     is kept
/// \return the models
/// \throws UsageError with the name of a field for a setting that makes no sense; Error for calibration text that is
///     missing, malformed or too short, and for numerical failure; OutOfMemory; Interrupted after RequestInterrupt()
RepairResult Repair(const LanguageModel& model, const Recipe& recipe = {}, const Resources& resources = {},
                    Progress* progress = nullptr, const std::filesystem::path& keep = {});

}  // namespace shiftrt
