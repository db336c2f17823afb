// SPDX-License-Identifier: Apache-2.0
// Conversations with an instruct model: what --chat and --system ask for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "engine/generate.h"
#include "models/model.h"
#include "tokenizers/chat_template.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct ChatOptions {
  bool chat = false;   // the prompt is a user's message
  std::string system;  // the system's message; "": none

  void AddTo(CLI::App& app);  // --chat, --system
};

// Throws Error naming the places looked at where the model has no chat template.
std::unique_ptr<ChatTemplate> RequireChatTemplate(const Model& model);

// The ids of a prompt: with BOS as the tokenizer's configuration says, or, in a chat, as the template writes it.
std::vector<int32_t> PromptTokens(const Model& model, const std::string& prompt, const ChatOptions& options);

// The ids that end a reply: those of generation_config.json and config.json, and the tokenizer's EOS.
std::vector<int32_t> StopTokens(const Model& model);

// One conversation. The cache is kept between turns: of each turn only what the cache does not hold is computed.
class Conversation {
 public:
  // Keeps references to the decoder and the model.
  Conversation(Decoder& decoder, const Model& model, const ChatOptions& options);

  // The reply to the user's next message, as it comes, to `request.on_token`; request.stop is StopTokens(). At most
  // request.max_tokens, fewer where the context ends before. Throws Error when the conversation fills the context.
  GenerationResult Reply(const std::string& message, GenerationRequest request);

  // Tokens of the whole conversation so far, and how many of them the last turn computed.
  int64_t length() const { return static_cast<int64_t>(held_.size()); }
  int64_t computed() const { return computed_; }

 private:
  Decoder& decoder_;
  const Model& model_;
  const std::unique_ptr<ChatTemplate> template_;
  const std::vector<int32_t> stop_;
  std::vector<ChatMessage> messages_;
  KvCache cache_;
  std::vector<int32_t> held_;  // the tokens that the cache holds
  int64_t computed_ = 0;
};

}  // namespace shiftrt
