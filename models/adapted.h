// SPDX-License-Identifier: Apache-2.0
// Reads and writes the directories that --save makes (docs/dev/formats.md).
#pragma once

#include "models/model.h"

namespace shiftrt {

inline constexpr const char* kAdaptedFile = "shiftrt.json";

// Opens the model of a saved directory, without its tokenizer. Throws Error for a malformed file, an adapter that does
// not fit, and a base model that is missing or has another fingerprint.
Model OpenAdapted(const std::filesystem::path& directory, const LoadOptions& options);

// True if the directory was saved from a model of these weights. Reads no weights. Throws Error for a malformed file.
bool IsSavedFrom(const std::filesystem::path& directory, const Weights& weights);

// Opens only the plan of a saved directory, for a model that is open already. Throws Error as OpenAdapted does.
DepthPlan OpenSavedPlan(const std::filesystem::path& directory, const Weights& weights);

// Replaces the provenance in a directory written by SaveAdapted, in one step. Does nothing and returns false if that is
// not `before`: another program has saved a model there since.
bool ReplaceProvenance(const std::filesystem::path& directory, const Provenance& before, const Provenance& after);

// The first file of a saved directory that is missing, or "". A directory that was pulled may lack some.
std::string MissingOfSaved(const std::filesystem::path& directory);

// The units of each block's MLP in a directory that was saved with its weights, 0 for those of the configuration. Empty
// for any other directory, and where all are.
std::vector<int64_t> StoredUnits(const std::filesystem::path& directory);

// The directory with the weights and the tokenizer of the saved model: its base model's, or itself if it was saved with
// weights. Throws Error for a malformed file.
std::filesystem::path AdaptedBase(const std::filesystem::path& directory);

}  // namespace shiftrt
