// SPDX-License-Identifier: Apache-2.0
#include "tools/chat.h"

#include <CLI/CLI.hpp>

#include "api/chat.h"

namespace shiftrt {

void ChatOptions::AddTo(CLI::App& app) {
  CLI::Option* const flag =
      app.add_flag("--chat", chat, "the prompt is a user's message, written as the model's chat template says");
  app.add_option("--system", system, "with --chat: the system's message")->needs(flag);
}

std::vector<int32_t> PromptTokens(const Model& model, const std::string& prompt, const ChatOptions& options) {
  const Tokenizer& tokenizer = model.RequireTokenizer();
  if (!options.chat) return tokenizer.EncodeWithBos(prompt);
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", prompt});
  return tokenizer.Encode(RequireChatTemplate(model)->Render(messages));
}

}  // namespace shiftrt
