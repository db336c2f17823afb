// SPDX-License-Identifier: Apache-2.0
// How conversations are written for a model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/model.h"
#include "tokenizers/chat_template.h"

namespace shiftrt {

// Throws Error naming the places looked at if the model has no chat template.
std::unique_ptr<ChatTemplate> RequireChatTemplate(const Model& model);

}  // namespace shiftrt
