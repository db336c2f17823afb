// SPDX-License-Identifier: Apache-2.0
#include "shift/corrections/corrections.h"

#include <fmt/args.h>

#include "runtime/check.h"

namespace shiftrt {

using Fit = FittedSites(const FitInput& input);
// Each in the file of that name.
Fit FitLra, FitRefit, FitJoint, FitGenericAffine, FitBias, FitReplaceMe, FitLaco, FitNone, FitAuto;

const std::vector<Correction>& Corrections() {
  static const std::vector<Correction> table = {
      // name, summary, label, needs, adapters, has_rank, has_lambda, fit
      {"lra", "h + h A + b, fitted to the block's update", "{span}{lra}", Needs::kStreamSums, true, true, true,
       &FitLra},
      {"refit", "the down projection before, fitted again to carry the run's update", "refit", Needs::kActivationSums,
       false, false, true, &FitRefit},
      {"joint", "that projection and one h + h A + b per run, fitted together", "joint {lra}",
       Needs::kStreamAndActivationSums, false, true, true, &FitJoint},
      {"generic-affine", "h W + b, fitted to the block's output", "generic affine {rank}", Needs::kStreamSums, true,
       true, true, &FitGenericAffine},
      {"bias", "the mean update", "mean update", Needs::kStreamSums, true, false, false, &FitBias},
      {"replaceme", "a map folded into the MLP before", "ReplaceMe", Needs::kMlpSums, false, false, true,
       &FitReplaceMe},
      {"laco", "weight differences folded into the block before", "LaCo folding", Needs::kNothing, false, false, false,
       &FitLaco},
      {"none", "nothing", "nothing", Needs::kNothing, false, false, false, &FitNone},
      {"auto", "the lra recipe with the lowest loss on held-out calibration text", "auto {span}{lra}", Needs::kText,
       true, true, true, &FitAuto},
  };
  return table;
}

const Correction& FindCorrection(std::string_view name) {
  std::string known;
  for (const Correction& correction : Corrections()) {
    if (name == correction.name) return correction;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", correction.name);
  }
  FailUsage(Field("correction"), "unknown correction \"{}\"; known: {}", name, known);
}

std::string Label(const Correction& correction, const RankSpec& rank, bool span) {
  const std::string lra = rank.kind == RankSpec::Kind::kFull ? "full LRA" : "LRA " + Format(rank);
  return fmt::format(fmt::runtime(correction.label), fmt::arg("span", span ? "span " : ""), fmt::arg("lra", lra),
                     fmt::arg("rank", Format(rank)));
}

}  // namespace shiftrt
