#include "tools/recipe.h"

#include <CLI/CLI.hpp>

#include "runtime/check.h"
#include "tools/options.h"
#include "tools/selection.h"
#include "tools/texts.h"

namespace shiftrt {

void RecipeOptions::AddTo(CLI::App& app) {
  app.add_option("--prune", prune,
                 "CRITERION:AMOUNT[,keep=first:N,last:N] or layers=3,5,8-10; an amount is a ratio (0.25), a count\n"
                 "(8), params=6.3B or bytes=12GiB for what stays, adapters not counted")
      ->capture_default_str();
  app.add_option("--lra", lra, "rank of the adapters, full, energy:SHARE of each fit, or budget:PARAMETERS of all")
      ->capture_default_str();
  app.add_option("--correction", correction, "what stands in the removed blocks' place:" + CorrectionsHelp())
      ->capture_default_str();
  app.add_option("--calibration-mode", calibration_mode,
                 "independent, sequential (each site on the corrected stream) or drift (towards the original stream)")
      ->capture_default_str();
  app.add_option("--token-weight", token_weight,
                 "none, or any of norm (1 / mean square of the block's output), first:W (first token of a sample) and\n"
                 "massive:W (tokens with a massive activation), comma separated")
      ->capture_default_str();
  app.add_flag("--span", span, "one adapter for each run of neighbours, fitted over the whole run");
  app.add_flag("--gate", gate, "drop corrections that the loss on held-out calibration text is lower without");
  app.add_option("--calib", calib, "calibration text, NAME|FILE[:samples[xtokens]] (256x512; demo brings its own)");
  app.add_option("--save-gram", save_gram, "keep the calibration sums in this file; an interrupted run continues there")
      ->check(FileOutput());
  app.add_option("--gram-layers", gram_layers, "with --save-gram: sums of the removed layers, or of all")
      ->check(CLI::IsMember({"removed", "all"}))
      ->capture_default_str();
  app.add_option("--load-gram", load_gram,
                 "fit from the sum of these files instead of running the model over calibration text");
  app.add_option("--lambda", lambda, "gcv, holdout, an absolute value, or RELrel times the mean diagonal")
      ->capture_default_str();
  app.add_flag("--penalize-bias", penalize_bias, "penalise the bias too, as the paper's main text does");
  app.add_option("--factorize", factorize, "rrr (best on the data), svd (the paper) or svd-refit (its bias refitted)")
      ->capture_default_str();
  app.add_option("--merge", merge, "off, full or lowrank: neighbouring adapters become one")->capture_default_str();
}

ShiftOptions RecipeOptions::Parse(uint64_t seed) const {
  ShiftOptions shift;
  shift.prune = ParsePrune(prune);
  shift.fit.rank = ParseRank(lra);
  shift.fit.ridge = {ParseLambda(lambda), penalize_bias};
  shift.fit.factorization = ParseFactorization(factorize);
  shift.merge = ParseMerge(merge);
  shift.correction = &FindCorrection(correction);
  shift.mode = ParseCalibrationMode(calibration_mode);
  shift.weighting = ParseTokenWeighting(token_weight);
  shift.span = span;
  shift.gate = gate;
  shift.seed = seed;
  shift.gram.load.assign(load_gram.begin(), load_gram.end());
  shift.gram.save = save_gram;
  shift.gram.all_layers = gram_layers == "all";
  if (shift.gram.all_layers && save_gram.empty()) FailUsage("--gram-layers goes with --save-gram FILE");
  return shift;
}

CalibrationSet RecipeOptions::OpenText(const Model& model, uint64_t seed) const {
  const bool fit_from_files = !load_gram.empty() && calib.empty();
  return fit_from_files ? CalibrationSet() : OpenCalibration(calib, model, seed);
}

}  // namespace shiftrt
