// SPDX-License-Identifier: Apache-2.0
#include "shift/options.h"

#include <algorithm>

#include "runtime/check.h"
#include "shift/quantise/quantise.h"

namespace shiftrt {

namespace {

SettingSet UsedBy(const Recipe& recipe) {
  SettingSet used;
  for (const SettingRow& row : Settings())
    if (row.used != nullptr && row.used(recipe)) used = used | SettingSet{row.setting};
  return used;
}

std::vector<std::string_view> Accepting(Setting setting) {
  std::vector<std::string_view> names;
  for (const Correction& correction : Corrections())
    if (correction.accepts.has(setting)) names.push_back(correction.name);
  return names;
}

[[noreturn]] void Refuse(const Correction& correction, const SettingRow& row) {
  RefuseSetting(row, "correction", fmt::format("the correction {}", correction.name), Accepting(row.setting));
}

// The settings that a model and its processes have.
SettingSet SettingsOf(const ModelConfig& config, bool split) {
  SettingSet settings;
  if (split) settings = settings | SettingSet{Setting::kSplit};
  if (!config.block.PlainUpdates()) settings = settings | SettingSet{Setting::kUpdateNorms};
  if (config.block.mixed) settings = settings | SettingSet{Setting::kMixture};
  return settings;
}

// Returns why a recipe that names no correction gets "lra" and not "joint", or "" if it gets "joint".
std::string WhyNotJoint(const Recipe& recipe, SettingSet model = {}) {
  if (recipe.mode != Calibration::kAuto) return fmt::format("a calibration mode is given: {}", Name(recipe.mode));
  Recipe joint = recipe;
  joint.correction = "joint";
  const SettingSet used = UsedBy(joint) | model, accepted = Accepted(joint);
  for (const SettingRow& row : Settings())
    if (used.has(row.setting) && !accepted.has(row.setting))
      return fmt::format("joint does not go with {}: {}", row.name, row.why);
  return "";
}

}  // namespace

Recipe WithCorrection(Recipe recipe, const ModelConfig& config, bool split, std::string* why) {
  std::string reason;
  if (recipe.correction.empty()) {
    reason = WhyNotJoint(recipe, SettingsOf(config, split));
    recipe.correction = reason.empty() ? "joint" : "lra";
  }
  if (why != nullptr) *why = reason;
  return recipe;
}

const Correction& CorrectionOf(const Recipe& recipe) {
  if (!recipe.correction.empty()) return FindCorrection(recipe.correction);
  return FindCorrection(WhyNotJoint(recipe).empty() ? "joint" : "lra");
}

std::string CorrectionName(const Recipe& recipe) { return std::string(CorrectionOf(recipe).name); }

FitOptions FitOptionsOf(const Recipe& recipe, Spectra spectra) {
  return {{recipe.lambda, recipe.penalize_bias}, recipe.rank, recipe.factorization, spectra};
}

SettingSet Accepted(const Recipe& recipe) {
  return recipe.heal == Heal::kOff ? CorrectionOf(recipe).accepts : CorrectionOf(recipe).accepts | kTakenByHealing;
}

void CheckOptions(const Recipe& recipe, const ModelConfig& config, bool split) {
  const SettingSet used = UsedBy(recipe) | SettingsOf(config, split);
  for (const SettingRow& row : Settings())
    if (used.has(row.setting) && !Accepted(recipe).has(row.setting)) Refuse(CorrectionOf(recipe), row);
  CheckCriterion(recipe.prune, used);
  for (const auto& [first, second, why] : SettingConflicts())
    if (used.has(first) && used.has(second))
      FailUsage(Field(std::string(RowOf(first).field)), "{} does not go with {}: {}", RowOf(first).name,
                RowOf(second).name, why);
  CheckParallelBlocks(recipe.prune, config);
  if (recipe.heal == Heal::kAll && config.block.parallel)
    FailUsage(Field("heal"),
              "all: the model has parallel blocks, in which no stream runs between attention and MLP that the output "
              "projection could be fitted to: choose down");
  CheckRounds(recipe.quantise, config);
  if (CorrectionOf(recipe).has_rank()) CheckRank(recipe.rank, config.hidden);
}

void CheckGiven(const Recipe& recipe, std::string_view field) {
  for (const SettingRow& row : Settings())
    if (row.used == nullptr && row.field == field && !Accepted(recipe).has(row.setting))
      Refuse(CorrectionOf(recipe), row);
}

bool Reads(const Recipe& recipe, std::string_view field) {
  const auto row =
      std::find_if(Settings().begin(), Settings().end(), [&](const auto& one) { return one.field == field; });
  return row == Settings().end() || Accepted(recipe).has(row->setting);
}

Calibration ModeOf(const Recipe& recipe, bool split, const char** why) {
  if (why != nullptr) *why = nullptr;
  if (recipe.mode != Calibration::kAuto) return recipe.mode;
  const Calibration usual = CorrectionOf(recipe).usual_mode;
  if (usual == Calibration::kIndependent) return usual;
  const SettingSet used = split ? UsedBy(recipe) | SettingSet{Setting::kSplit} : UsedBy(recipe);
  for (const auto& [first, second, reason] : SettingConflicts()) {
    const bool excluded =
        (first == Setting::kMode && used.has(second)) || (second == Setting::kMode && used.has(first));
    if (!excluded) continue;
    if (why != nullptr) *why = reason;
    return Calibration::kIndependent;
  }
  return usual;
}

Recipe Normalized(Recipe recipe) {
  recipe.mode = ModeOf(recipe, false);
  const SettingSet accepted = Accepted(recipe);
  for (const SettingRow& row : Settings())
    if (row.reset != nullptr && !accepted.has(row.setting)) row.reset(recipe);
  return recipe;
}

bool ReadsText(const Recipe& recipe, bool scored) {
  if (CorrectionOf(recipe).needs != Needs::kNothing && recipe.gram.load.empty()) return true;
  if (!scored && NeedCalibration({recipe.prune})) return true;
  if (recipe.quantise.reads_text()) return true;
  return std::any_of(Settings().begin(), Settings().end(),
                     [&](const SettingRow& row) { return row.reads_text && row.used(recipe); });
}

}  // namespace shiftrt
