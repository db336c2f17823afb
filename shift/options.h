// SPDX-License-Identifier: Apache-2.0
// The recipe as the method reads it, and the table that says which of its settings go together. It has three parts: the
// settings that each correction accepts (corrections.cc), those that each criterion accepts (criteria.cc), and the
// pairs of settings that exclude each other (setting.cc). CheckOptions reads all three, and docs/dev/method.md shows
// them.
#pragma once

#include <string>
#include <string_view>

#include "include/shiftrt/recipe.h"
#include "shift/corrections/corrections.h"
#include "shift/criteria/criteria.h"
#include "shift/fit/fit.h"
#include "shift/fit/merge.h"
#include "shift/refit/sequential_fit.h"
#include "shift/setting.h"
#include "shift/sums/token_weights.h"

namespace shiftrt {

// The recipe with the name of its correction, which for a recipe that names none is "joint", or "lra" where a setting
// of the recipe or of the model is one that joint does not take. `split`: as for CheckOptions. `why` receives the
// reason for "lra", or "".
Recipe WithCorrection(Recipe recipe, const ModelConfig& config, bool split, std::string* why = nullptr);
// The row of the recipe's correction, or of the one that a recipe without a name gets. Throws UsageError for an unknown
// one.
const Correction& CorrectionOf(const Recipe& recipe);
// The options of the recipe's fits.
FitOptions FitOptionsOf(const Recipe& recipe, Spectra spectra = Spectra::kNow);

// The settings that healing takes, whatever the correction is.
constexpr SettingSet kTakenByHealing = {Setting::kLambda, Setting::kWeights};
// The settings that a correction accepts, with those that healing takes if it is on.
SettingSet Accepted(const Recipe& recipe);

// Throws UsageError, with the field at fault ("rank", "gram.load"), for settings that the table refuses and for a rank
// that a model of that hidden size does not have. `split`: the blocks of the model are divided among processes.
void CheckOptions(const Recipe& recipe, const ModelConfig& config, bool split = false);

// The calibration mode of the recipe; for kAuto the one that it stands for: the usual mode of the correction
// (Correction::usual_mode), or kIndependent if a setting in use excludes other modes. `why` receives the reason for
// that, or null.
Calibration ModeOf(const Recipe& recipe, bool split, const char** why = nullptr);

// The recipe with the default for each setting that the correction does not accept, so that recipes which give the
// same correction are equal. Settings without SettingRow::reset stay, and CheckOptions refuses them.
Recipe Normalized(Recipe recipe);

// True if the method reads calibration text for the recipe. `scored`: files of sums have the criterion's scores.
bool ReadsText(const Recipe& recipe, bool scored);

}  // namespace shiftrt
