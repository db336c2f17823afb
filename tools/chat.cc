// SPDX-License-Identifier: Apache-2.0
#include "tools/chat.h"

#include <CLI/CLI.hpp>

namespace shiftrt {

void ChatOptions::AddTo(CLI::App& app) {
  CLI::Option* const flag =
      app.add_flag("--chat", chat, "the prompt is a user's message, written as the model's chat template says");
  app.add_option("--system", system, "with --chat: the system's message")->needs(flag);
}

}  // namespace shiftrt
