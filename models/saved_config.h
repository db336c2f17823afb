// SPDX-License-Identifier: Apache-2.0
// The config.json of a model that is saved with its weights: the base model's, for the blocks that are kept.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/plan.h"

namespace shiftrt {

// `config` of a model whose layers are the blocks of `plan`, renumbered without gaps: the number of layers, and the
// settings that name layers (layer_types, max_window_layers), which stay with the layers they were for. Other lists
// with as many entries as the config has layers are taken for settings of layers too, unless they are lists of tokens
// or names; `resized` receives their keys.
nlohmann::json KeptConfig(nlohmann::json config, const DepthPlan& plan, std::vector<std::string>* resized = nullptr);

// Whether the blocks' tensors alone are the model: no adapters, no half blocks. Any program may then open it.
bool IsStock(const DepthPlan& plan);

// Gives a config an architecture and a model type that no other program knows, so that none opens the blocks as if they
// were the model. What they were is kept under "shiftrt".
nlohmann::json Marked(nlohmann::json config);

// The same mark for a directory of the format hf-lra (models/hf_lra.h), which transformers opens with the Python files
// in it. `mark`: what it says besides the format and the base architecture.
nlohmann::json MarkedHfLra(nlohmann::json config, nlohmann::json mark);
bool IsMarkedHfLra(const nlohmann::json& config);

// Reads a config.json and takes the mark off. Throws Error for invalid JSON and for a mark that is not as Marked() or
// MarkedHfLra() makes it.
nlohmann::json ReadUnmarked(const std::filesystem::path& file);

}  // namespace shiftrt
