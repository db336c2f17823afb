// SPDX-License-Identifier: Apache-2.0
// The settings of a fit, apart from the rank, that `--correction auto` varies between its trials.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "include/shiftrt/provenance.h"
#include "include/shiftrt/recipe.h"

namespace shiftrt {

struct FitRecipe {
  Calibration mode = Calibration::kIndependent;
  TokenWeights weighting;
  Factorization factorization = Factorization::kSvd;
  LambdaSpec lambda;
  std::string correction = "lra";  // or "refit" or "joint", which have neither mode nor factorization to choose
};

// The result of a fit by a recipe.
struct Trial {
  FitRecipe recipe;
  int64_t tokens = 0;      // fitted
  double loss = 0;         // on held-out text, nats per token
  double gain = 0;         // by which the loss is below that of the first trial
  double error = 0;        // standard error of `gain` over the held-out sequences; infinite for a single sequence
  int64_t parameters = 0;  // parameters of the adapters, which the recipe costs at run time

  // True if the gain is more than twice its standard error.
  bool clear() const { return gain > 2 * error; }
};

// The chosen one of some trials; null if there are none.
const TrialReport* ChosenOf(const std::vector<TrialReport>& trials);

}  // namespace shiftrt
