// SPDX-License-Identifier: Apache-2.0
// Experiments of the paper (Bahri et al., SHIFT-LLM, 2026) as settings of a sweep, and the paper's own numbers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shiftrt/sweep.h"

namespace shiftrt {

struct Preset {
  const char* name;
  const char* summary;                   // one line for --help
  std::string prune;                     // as --prune
  std::vector<std::string> corrections;  // as --correction
  std::vector<std::string> modes;        // as --calibration-mode
  std::vector<std::string> ranks;        // as --lra; those above the hidden size are left out
  std::vector<int64_t> samples;          // as in --calib
  std::vector<uint64_t> seeds;
};
// One row per experiment. All factorize by truncated SVD, as the paper does.
const std::vector<Preset>& Presets();
// Throws UsageError listing the presets.
const Preset& FindPreset(const std::string& name);

// The paper's numbers for a setting; NaN if it gives none. The perplexity is that of WikiText-2, and the accuracy the
// mean of seven zero-shot suites in percent.
struct PaperResult {
  double pruned_perplexity, corrected_perplexity;
  double pruned_accuracy, corrected_accuracy;
};
// The paper's name of the model that `name` (a known name, or a directory whose last part is one) stands for; "" for
// any other.
std::string PaperModel(const std::string& name);
// The table of the paper that is shown next to a sweep's: that of the preset, for one model. None if there is no model.
struct PaperTable {
  std::string model, preset;
};
// Nothing where that table has no such line.
std::optional<PaperResult> PaperNumbers(const PaperTable& table, const SweepRow& row);

}  // namespace shiftrt
