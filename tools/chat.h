// SPDX-License-Identifier: Apache-2.0
// Conversations with an instruct model: what --chat and --system ask for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct ChatOptions {
  bool chat = false;   // the prompt is a user's message
  std::string system;  // the system's message; "": none

  void AddTo(CLI::App& app);  // --chat, --system
};

// The ids of a prompt: with BOS as the tokenizer's configuration says, or, in a chat, as the template writes it.
std::vector<int32_t> PromptTokens(const Model& model, const std::string& prompt, const ChatOptions& options);

}  // namespace shiftrt
