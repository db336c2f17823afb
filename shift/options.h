// SPDX-License-Identifier: Apache-2.0
// The options of the method, and the table that says which of them go together. It has three parts: the settings that
// each correction accepts (corrections.cc), those that each criterion accepts (criteria.cc), and the pairs of settings
// that exclude each other (setting.cc). CheckOptions reads all three, and docs/method.md shows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "include/shiftrt/recipe.h"
#include "shift/corrections/corrections.h"
#include "shift/criteria/criteria.h"
#include "shift/fit/fit.h"
#include "shift/fit/merge.h"
#include "shift/refit/walk.h"
#include "shift/setting.h"
#include "shift/sums/token_weights.h"

namespace shiftrt {

struct ShiftOptions {
  PruneSpec prune;
  const Correction* correction = &Corrections().front();  // a row of the table
  FitOptions fit;
  Calibration mode = Calibration::kIndependent;
  TokenWeighting weighting;
  bool span = false;  // one adapter for each run of neighbours, fitted from its first input to its last output
  bool gate = false;  // drop corrections without which the held-out loss is lower
  Merge merge = Merge::kOff;
  Heal heal = Heal::kOff;  // fit projections of the kept blocks behind the first removed one again
  GramFiles gram;
  uint64_t seed = 0;
};

// The options that a recipe stands for. Throws UsageError for an unknown correction.
ShiftOptions OptionsOf(const Recipe& recipe);
// The other way. The recipe has no calibration text.
Recipe RecipeOf(const ShiftOptions& options);

// The settings that healing takes, whatever the correction is.
constexpr SettingSet kTakenByHealing = {Setting::kLambda, Setting::kWeights};
// The settings that a correction accepts, with those that healing takes if it is on.
SettingSet Accepted(const ShiftOptions& options);

// Throws UsageError, with the field at fault ("rank", "gram.load"), for options that the table refuses and for a rank
// that a model of that hidden size does not have. `split`: the blocks of the model are divided among processes.
void CheckOptions(const ShiftOptions& options, const ModelConfig& config, bool split = false);
// Throws the same error if the correction does not accept the value of this field, which the caller was given.
void CheckGiven(const ShiftOptions& options, std::string_view field);

// The calibration mode of these options; for kAuto the one that it stands for: the usual mode of the correction
// (Correction::usual_mode), or kIndependent if a setting in use excludes other modes. `why` receives the reason for
// that, or null.
Calibration ModeOf(const ShiftOptions& options, bool split, const char** why = nullptr);

// The options with the default for each setting that the correction does not accept, so that options which give the
// same correction are equal. Settings without SettingRow::reset stay, and CheckOptions refuses them.
ShiftOptions Normalized(ShiftOptions options);

// True if the method reads calibration text with these options. `scored`: files of sums have the criterion's scores.
bool ReadsText(const ShiftOptions& options, bool scored = false);

}  // namespace shiftrt
