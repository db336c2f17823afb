// SPDX-License-Identifier: Apache-2.0
// Directories that are no model in Hugging Face form: for messages that say what to give instead.
#pragma once

#include <filesystem>
#include <string>

namespace shiftrt {

/// \param directory A directory without a config.json.
/// \return What the directory holds instead of a model, and what to give, as a sentence after ". "; empty if nothing
///   in it is known.
std::string LayoutWithoutConfig(const std::filesystem::path& directory);

/// \param directory A directory with neither model.safetensors nor an index of shards.
/// \return Which weights the directory holds instead, and what to do with them, after "; "; empty if nothing in it is
///   known.
std::string LayoutWithoutWeights(const std::filesystem::path& directory);

}  // namespace shiftrt
