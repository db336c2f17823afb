// SPDX-License-Identifier: Apache-2.0
#include "shift/corrections/corrections.h"

#include <fmt/args.h>

#include "runtime/check.h"
#include "runtime/words.h"

namespace shiftrt {

using Fit = FittedSites(const FitInput& input);
// Each in the file of that name; FitLinearPatchDiagonal in linearpatch.cc.
Fit FitLra, FitNormLra, FitNormRefit, FitRefit, FitJoint, FitGenericAffine, FitBias, FitReplaceMe, FitGhosted,
    FitLinearPatch, FitLinearPatchDiagonal, FitPruneComp, FitLaco, FitNone, FitAuto;

const std::vector<Correction>& Corrections() {
  using enum Setting;
  constexpr SettingSet kRanks = {kRank, kFullRank, kFactorization}, kPerBlock = {kHalves, kSpan, kMerge},
                       kUsual = {kGate, kHeal, kQuantise, kMaxDivergence};
  constexpr SettingSet kGeneric = SettingSet::All() - SettingSet{kSplit};
  constexpr SettingSet kFolded = kUsual | SettingSet{kUpdateNorms}, kScaled = kFolded | SettingSet{kMixture};
  constexpr SettingSet kRefit = kUsual | SettingSet{kHalves, kLambda, kWeights};
  constexpr Calibration kOnce = Calibration::kIndependent;
  static const std::vector<Correction> table = {
      // name, summary, label, needs, makes, accepts, usual_mode, fit
      {"lra", "h + h A + b, fitted to the block's update", "{span}{lra}", Needs::kStreamSums, Makes::kAdapters,
       SettingSet::All(), Calibration::kDrift, &FitLra},
      {"refit", "the last projection before, fitted again to carry the run's update", "refit", Needs::kActivationSums,
       Makes::kChanges, kRefit, kOnce, &FitRefit},
      {"joint", "that projection and one h + h A + b per run, fitted together", "joint {lra}",
       Needs::kStreamAndActivationSums, Makes::kBoth, kRefit | kRanks, kOnce, &FitJoint},
      {"norm-lra", "h + norm(h) A + b, which llama.cpp runs", "{span}norm {lra}", Needs::kNormedSums, Makes::kAdapters,
       SettingSet::All() - SettingSet{kSplit, kMerge, kLoadedSums, kSavedSums, kAllSums}, Calibration::kDrift,
       &FitNormLra},
      {"norm-refit", "refit, and h + norm(h) A + b for what it leaves, which llama.cpp runs", "norm refit {lra}",
       Needs::kActivationThenNormedSums, Makes::kBoth, kRefit | kRanks, kOnce, &FitNormRefit},
      {"generic-affine", "h W + b, fitted to the block's output", "generic affine {rank}", Needs::kStreamSums,
       Makes::kAdapters, kGeneric - SettingSet{kBudget}, kOnce, &FitGenericAffine},
      {"bias", "the mean update", "mean update", Needs::kStreamSums, Makes::kAdapters,
       kGeneric - kRanks - SettingSet{kBudget, kLambda, kPenalizedBias}, kOnce, &FitBias},
      {"replaceme", "a map folded into the MLP before", "ReplaceMe", Needs::kMlpSums, Makes::kChanges,
       kUsual | SettingSet{kLambda}, kOnce, &FitReplaceMe},
      {"ghosted", "h + h M per run, by least squares without a bias", "Ghosted Layers", Needs::kStreamSums,
       Makes::kRunAdapters, kScaled, kOnce, &FitGhosted},
      {"linearpatch", "h scaled per coordinate of its Hadamard transform, per run", "LinearPatch", Needs::kMagnitudes,
       Makes::kRunAdapters, kScaled, kOnce, &FitLinearPatch},
      {"linearpatch-diag", "h scaled per channel, per run", "LinearPatch diag", Needs::kMagnitudes, Makes::kRunAdapters,
       kScaled, kOnce, &FitLinearPatchDiagonal},
      {"prune-comp",
       "h scaled by one number per run, folded into the weights",
       "Prune&Comp",
       Needs::kMagnitudes,
       Makes::kChanges,
       {kQuantise, kMaxDivergence, kMixture},
       kOnce,
       &FitPruneComp},
      {"laco", "weight differences folded into the block before", "LaCo folding", Needs::kNothing, Makes::kChanges,
       kFolded, kOnce, &FitLaco},
      {"none",
       "nothing",
       "nothing",
       Needs::kNothing,
       Makes::kNothing,
       {kHalves, kSplit, kUpdateNorms, kMixture, kHeal, kQuantise, kMaxDivergence},
       kOnce,
       &FitNone},
      {"auto", "the recipe of lra, refit or joint with the lowest loss on held-out calibration text",
       "auto {span}{lra}", Needs::kText, Makes::kAdapters,
       kPerBlock | kFolded | SettingSet{kRank, kFullRank, kLambda, kPenalizedBias}, kOnce, &FitAuto},
  };
  return table;
}

const Correction& FindCorrection(std::string_view name) {
  return RowNamed(Corrections(), name, "correction", "unknown correction \"{}\"");
}

std::string WhyRefused(const Correction& correction, SettingSet used) {
  for (const SettingRow& row : Settings())
    if (used.has(row.setting) && !correction.accepts.has(row.setting)) return fmt::format("{}: {}", row.name, row.why);
  return "";
}

SiteCorrection InSequence(const Correction& correction, const ShiftJob& job, const FitOptions& options) {
  Check(correction.fitted_in_sequence(), "{} is not fitted in sequence", correction.name);
  return {correction.first_input(),
          [&](const SiteSums& sums, const Projection* projection, const BlockPtr& before) {
            return correction.fit({job, {sums.site}, {&sums}, options, projection, before});
          },
          correction.normed_adapters()};
}

std::string Format(const FitRecipe& recipe) {
  const Correction& correction = FindCorrection(recipe.correction);
  const bool adapters = correction.takes_recipe();
  std::string text =
      fmt::format("{}, token weights {}", adapters ? Name(recipe.mode) : recipe.correction, Format(recipe.weighting));
  if (adapters) text += fmt::format(", {}", Name(recipe.factorization));
  return text + fmt::format(", lambda {}", Format(recipe.lambda));
}

std::string Label(const Correction& correction, const RankSpec& rank, bool span) {
  const std::string lra = rank.kind == RankSpec::Kind::kFull ? "full LRA" : "LRA " + Format(rank);
  return fmt::format(fmt::runtime(correction.label), fmt::arg("span", span ? "span " : ""), fmt::arg("lra", lra),
                     fmt::arg("rank", Format(rank)));
}

}  // namespace shiftrt
