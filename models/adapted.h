// SPDX-License-Identifier: Apache-2.0
// Directories written by --save: docs/formats.md.
#pragma once

#include "models/model.h"

namespace shiftrt {

inline constexpr const char* kAdaptedFile = "shiftrt.json";

// Everything of the model but its tokenizer. Throws Error for a malformed file, an adapter that does not fit, a base
// model that is missing or whose fingerprint is another.
Model OpenAdapted(const std::filesystem::path& directory, const LoadOptions& options);

// The plan of such a directory, for a model that is open already. Throws Error as OpenAdapted does.
DepthPlan OpenSavedPlan(const std::filesystem::path& directory, const Weights& weights);

// Replaces the provenance in a directory written by SaveAdapted, in one step.
void RecordProvenance(const std::filesystem::path& directory, const nlohmann::json& provenance);

// The provenance in such a directory, as SaveAdapted was given it, or in one of the format hf-lra, its essentials; null
// where there is none.
nlohmann::json OpenProvenance(const std::filesystem::path& directory);
// What Model has of that.
Provenance ReadProvenance(const nlohmann::json& provenance);

// Where the model that runs has its weights and its tokenizer. Throws Error for a malformed file.
std::filesystem::path AdaptedBase(const std::filesystem::path& directory);

}  // namespace shiftrt
