// SPDX-License-Identifier: Apache-2.0
// How conversations are written for a model, and where its replies end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/model.h"
#include "tokenizers/chat_template.h"

namespace shiftrt {

// Throws Error naming the places looked at if the model has no chat template.
std::unique_ptr<ChatTemplate> RequireChatTemplate(const Model& model);

// The ids that end a reply: those of generation_config.json and config.json, and the tokenizer's EOS.
std::vector<int32_t> StopTokens(const Model& model);

}  // namespace shiftrt
