// SPDX-License-Identifier: Apache-2.0
#include "shift/options.h"

#include <algorithm>
#include <tuple>

#include "runtime/check.h"

namespace shiftrt {

namespace {

SettingSet UsedBy(const ShiftOptions& options) {
  SettingSet used;
  for (const SettingRow& row : Settings())
    if (row.used != nullptr && row.used(options)) used = used | SettingSet{row.setting};
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

// The fields that options and a recipe have in common.
template <typename Options>
auto Shared(Options& of) {
  if constexpr (requires { of.fit; })
    return std::tie(of.prune, of.fit.rank, of.fit.ridge.lambda, of.fit.ridge.penalize_bias, of.fit.factorization,
                    of.mode, of.weighting.norm, of.weighting.first, of.weighting.massive, of.span, of.gate, of.merge,
                    of.heal, of.gram, of.seed);
  else
    return std::tie(of.prune, of.rank, of.lambda, of.penalize_bias, of.factorization, of.mode, of.weighting.norm,
                    of.weighting.first, of.weighting.massive, of.span, of.gate, of.merge, of.heal, of.gram, of.seed);
}

}  // namespace

ShiftOptions OptionsOf(const Recipe& recipe) {
  ShiftOptions options;
  Shared(options) = Shared(recipe);
  options.prune.text = Format(recipe.prune);
  options.correction = &FindCorrection(recipe.correction);
  return options;
}

Recipe RecipeOf(const ShiftOptions& options) {
  Recipe recipe;
  Shared(recipe) = Shared(options);
  recipe.correction = options.correction->name;
  return recipe;
}

SettingSet Accepted(const ShiftOptions& options) {
  return options.heal == Heal::kOff ? options.correction->accepts : options.correction->accepts | kTakenByHealing;
}

void CheckOptions(const ShiftOptions& options, const ModelConfig& config, bool split) {
  SettingSet used = UsedBy(options);
  if (split) used = used | SettingSet{Setting::kSplit};
  if (!config.block.PlainUpdates()) used = used | SettingSet{Setting::kUpdateNorms};
  for (const SettingRow& row : Settings())
    if (used.has(row.setting) && !Accepted(options).has(row.setting)) Refuse(*options.correction, row);
  CheckCriterion(options.prune, used);
  for (const auto& [first, second, why] : SettingConflicts())
    if (used.has(first) && used.has(second))
      FailUsage(Field(std::string(RowOf(first).field)), "{} does not go with {}: {}", RowOf(first).name,
                RowOf(second).name, why);
  CheckParallelBlocks(options.prune, config);
  if (options.heal == Heal::kAll && config.block.parallel)
    FailUsage(Field("heal"),
              "all: the model has parallel blocks, in which no stream runs between attention and MLP that the output "
              "projection could be fitted to: choose down");
  if (options.correction->has_rank()) CheckRank(options.fit.rank, config.hidden);
}

void CheckGiven(const ShiftOptions& options, std::string_view field) {
  for (const SettingRow& row : Settings())
    if (row.used == nullptr && row.field == field && !Accepted(options).has(row.setting))
      Refuse(*options.correction, row);
}

bool Reads(const Recipe& recipe, std::string_view field) {
  const auto row =
      std::find_if(Settings().begin(), Settings().end(), [&](const auto& one) { return one.field == field; });
  return row == Settings().end() || Accepted(OptionsOf(recipe)).has(row->setting);
}

Calibration ModeOf(const ShiftOptions& options, bool split, const char** why) {
  if (why != nullptr) *why = nullptr;
  if (options.mode != Calibration::kAuto) return options.mode;
  const Calibration usual = options.correction->usual_mode;
  if (usual == Calibration::kIndependent) return usual;
  const SettingSet used = split ? UsedBy(options) | SettingSet{Setting::kSplit} : UsedBy(options);
  for (const auto& [first, second, reason] : SettingConflicts()) {
    const bool excluded =
        (first == Setting::kMode && used.has(second)) || (second == Setting::kMode && used.has(first));
    if (!excluded) continue;
    if (why != nullptr) *why = reason;
    return Calibration::kIndependent;
  }
  return usual;
}

ShiftOptions Normalized(ShiftOptions options) {
  options.mode = ModeOf(options, false);
  const SettingSet accepted = Accepted(options);
  for (const SettingRow& row : Settings())
    if (row.reset != nullptr && !accepted.has(row.setting)) row.reset(options);
  return options;
}

bool ReadsText(const ShiftOptions& options, bool scored) {
  if (options.correction->needs != Needs::kNothing && options.gram.load.empty()) return true;
  if (!scored && NeedCalibration({options.prune})) return true;
  return std::any_of(Settings().begin(), Settings().end(),
                     [&](const SettingRow& row) { return row.reads_text && row.used(options); });
}

}  // namespace shiftrt
