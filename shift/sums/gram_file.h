// SPDX-License-Identifier: Apache-2.0
// Calibration sums as files (GramFiles in include/shiftrt/recipe.h). Saved once, solved again for another lambda, rank,
// factorization, merging or set of layers without running the model; summed over disjoint texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "shift/sums/collect.h"

namespace shiftrt {

// The origin of sums. Two sets can be added if model and settings are equal and no sample is in both.
struct SumsOrigin {
  std::string model;                                      // fingerprint of the weights
  std::string dtype;                                      // the type they ran in
  std::string settings;                                   // the settings of the tokens and their weights
  std::string source;                                     // a description of the source of the text
  std::vector<std::string> fit_samples, heldout_samples;  // hash of each sample's tokens, in order
};

struct SavedSums {
  SumsOrigin origin;
  CalibrationSums sums;
  int64_t fit_total = 0, heldout_total = 0;           // batches of the whole calibration; sums holds so many of them
  std::map<std::string, std::vector<double>> scores;  // layer scores by criterion that were found on the way

  bool complete() const { return sums.fit_batches == fit_total && sums.heldout_batches == heldout_total; }
};

// Makes a set without sums, which Collect will fill. `scores`: layer scores by criterion, kept in the file so that
// another selection by the same criterion needs no model run either.
SavedSums NewSavedSums(const ShiftJob& job, const std::vector<BlockPart>& parts, const std::string& settings,
                       std::map<std::string, std::vector<double>> scores = {});

// A safetensors file (docs/dev/formats.md), written under a temporary name and renamed.
void WriteSums(const std::filesystem::path& file, const SavedSums& set);
// Throws Error naming the file for anything that is not such a file, of another version, or not finite.
SavedSums ReadSums(const std::filesystem::path& file);

// The sum of several complete files. Throws Error naming two files that do not belong together and why: another model,
// other settings, other layers, a sample in both; or one file that is not complete.
SavedSums LoadSums(const std::vector<std::filesystem::path>& files);

// Throws Error unless `set` was made from this model.
void CheckModel(const SavedSums& set, const Model& model);

// Collects the layers of `set`, which NewSavedSums made from the same calibration, into `file`. Continues a file that
// an interrupted run of the same origin and layers left there (the sums end with the same bits), returns a complete one
// as it is, and refuses another's. While it runs the file is rewritten every `seconds_between` seconds, and once more
// when it is interrupted.
SavedSums CollectIntoFile(const ShiftJob& job, SavedSums set, const std::filesystem::path& file,
                          double seconds_between = 60);

}  // namespace shiftrt
