// `--correction auto`: the recipe with the lowest loss on held-out calibration text, where it is surely lower than that
// of the paper's.
#pragma once

#include <string>
#include <vector>

#include "shift/fit/sequential.h"
#include "shift/measure/heldout_loss.h"

namespace shiftrt {

// What is tried. Rank, span and the bias's penalty are the user's.
struct Recipe {
  Calibration mode = Calibration::kIndependent;
  TokenWeighting weighting;
  Factorization factorization = Factorization::kSvd;
  LambdaSpec lambda;
};
std::string Format(const Recipe& recipe);  // "sequential, norm, rrr, lambda gcv"

struct Trial {
  Recipe recipe;
  int64_t tokens = 0;  // fitted
  double loss = 0;     // held out, nats a token
  double gain = 0;     // by which the loss is below that of the first trial
  double error = 0;    // standard error of `gain`, over the held-out sequences; infinite for one alone

  // Not by the luck of the held-out text.
  bool clear() const { return gain > 2 * error; }
};

struct AutomaticFit {
  FittedSites fitted;
  std::vector<Trial> trials;  // in the order tried; the paper's recipe is the first
  size_t chosen = 0;          // the clear trial with the lowest loss, or else the first, which `fitted` is of
  double calibrate_seconds = 0;
};

// Tries, from sums of one pass, token weights none and norm, svd and rrr, and lambda as given and by hold-out; then the
// best of them in sequence and with drift on a quarter of the text, and the better of those two on all of it where it
// comes near. Throws UsageError for a rank budget, which is spread over sites that are fitted together.
AutomaticFit FitAutomatically(const Context& context, const Model& model, const CalibrationSet& calibration,
                              const std::vector<Site>& sites, const FitOptions& options, HeldOutLoss& loss,
                              Progress& progress);

}  // namespace shiftrt
