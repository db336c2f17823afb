// SPDX-License-Identifier: Apache-2.0
// Conversations with an instruct model: what --chat and --system ask for.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace shiftrt {

struct ChatOptions {
  bool chat = false;   // the prompt is a user's message
  std::string system;  // the system's message; "": none

  void AddTo(CLI::App& app);  // --chat, --system
};

}  // namespace shiftrt
