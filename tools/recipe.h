// What to remove and how to repair it, as the command line says it: `run` and `eval` share it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "shift/pipeline.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct RecipeOptions {
  std::string prune = "bi:0.25", lra = "64", calib = {}, lambda = "gcv", factorize = "rrr", merge = "off";
  std::string correction = "lra", calibration_mode = "independent", token_weight = "none";
  std::vector<std::string> load_gram = {};
  std::string save_gram = {}, gram_layers = "removed";
  bool penalize_bias = false, span = false, gate = false;

  void AddTo(CLI::App& app);
  // Throws UsageError for what does not parse.
  ShiftOptions Parse(uint64_t seed) const;
  // The calibration text; empty where the sums come from files and no text is named. Throws UsageError when there is
  // no text.
  CalibrationSet OpenText(const Model& model, uint64_t seed) const;
};

}  // namespace shiftrt
