// SPDX-License-Identifier: Apache-2.0
// The mixers of the layers in the metadata of GGUF files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/gguf_architectures.h"
#include "models/gguf_keys.h"
#include "runtime/gguf_writer.h"

namespace shiftrt {

// Adds the settings of mixers that are no attention to `config`. `layers` counts those of the model alone.
void ReadGgufMixers(const GgufArchitecture& architecture, GgufKeys& keys, int64_t layers, nlohmann::json& config);
// The key-value heads of a layer with attention, where the file lists them by layer; no value where it does not.
std::optional<int64_t> ReadGgufKvHeads(const GgufArchitecture& architecture, GgufKeys& keys);

// Writes these settings, and notes what other programs may read differently.
void AddGgufMixers(const ModelConfig& config, const GgufArchitecture& architecture, GgufWriter& file,
                   std::vector<std::string>& notes);

}  // namespace shiftrt
