// SPDX-License-Identifier: Apache-2.0
// Blocks and halves of them in JSON: 3 for a whole block, "3.attn" or "3.mlp" for one half.
#pragma once

#include <nlohmann/json.hpp>

#include "include/shiftrt/blocks.h"

namespace shiftrt {

void to_json(nlohmann::json& json, const BlockPart& part);
// Throws Error for anything else.
void from_json(const nlohmann::json& json, BlockPart& part);

}  // namespace shiftrt
