// SPDX-License-Identifier: Apache-2.0
// Adapts the base model's config.json to the kept blocks of a model that is saved with its weights.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/plan.h"

namespace shiftrt {

// Adapts `config` to a model whose layers are the blocks of `plan`, renumbered without gaps: changes the number of
// layers, and the settings that name layers (layer_types, max_window_layers), which stay with the layers they were for.
// Other lists with one entry per layer are shortened too, unless they hold tokens or names; `resized` receives their
// keys.
nlohmann::json KeptConfig(nlohmann::json config, const DepthPlan& plan, std::vector<std::string>* resized = nullptr);

// True if the blocks' tensors alone make the model: no adapters, no half blocks. Any program may then open it.
bool IsStock(const DepthPlan& plan);

// Gives a config an architecture and a model type that no other program knows, so that none opens the blocks as if they
// were the whole model. The original values are kept under "shiftrt".
nlohmann::json Marked(nlohmann::json config);

// Marks the config of a directory of the format hf-lra (models/hf_lra.h), which transformers opens with the Python
// files in it. `mark`: further entries besides the format and the base architecture.
nlohmann::json MarkedHfLra(nlohmann::json config, nlohmann::json mark);
// Marks `llama`, the config of a Llama whose layers are a plan of blocks (models/llama_layers.h), so that other
// programs open it as that Llama. `config` is that of the blocks; the mark keeps the entries in which it differs.
nlohmann::json MarkedAsLlama(const nlohmann::json& config, nlohmann::json llama, nlohmann::json mark);
// True for a config of either of the two.
bool IsMarkedHfLra(const nlohmann::json& config);
// The entry of the mark that a Llama has.
inline constexpr const char* kAsLlama = "as_llama";

// Reads a config.json and removes the mark; of a model of text and images, the text model's. Throws Error for invalid
// JSON and for a mark that none of the functions above makes.
nlohmann::json ReadUnmarked(const std::filesystem::path& file);

}  // namespace shiftrt
