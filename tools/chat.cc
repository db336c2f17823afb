// SPDX-License-Identifier: Apache-2.0
#include "tools/chat.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

void ChatOptions::AddTo(CLI::App& app) {
  CLI::Option* const flag =
      app.add_flag("--chat", chat, "the prompt is a user's message, written as the model's chat template says");
  app.add_option("--system", system, "with --chat: the system's message")->needs(flag);
}

std::unique_ptr<ChatTemplate> RequireChatTemplate(const Model& model) {
  std::unique_ptr<ChatTemplate> found = LoadChatTemplate(model.directory, model.RequireTokenizer());
  Check(
      found != nullptr,
      "{}: --chat needs a chat template, and there is none (looked at chat_template.jinja, chat_template in "
      "tokenizer_config.json and chat_template.json, or tokenizer.chat_template of a GGUF file); base models have none",
      model.directory.string());
  return found;
}

namespace {

std::vector<ChatMessage> Opening(const ChatOptions& options) {
  if (options.system.empty()) return {};
  return {{"system", options.system}};
}

// The cache grows by doubling, so that growing costs no more than it saves.
constexpr int64_t kFirstCapacity = 1024;

}  // namespace

std::vector<int32_t> PromptTokens(const Model& model, const std::string& prompt, const ChatOptions& options) {
  const Tokenizer& tokenizer = model.RequireTokenizer();
  if (!options.chat) return tokenizer.EncodeWithBos(prompt);
  std::vector<ChatMessage> messages = Opening(options);
  messages.push_back({"user", prompt});
  return tokenizer.Encode(RequireChatTemplate(model)->Render(messages));
}

std::vector<int32_t> StopTokens(const Model& model) {
  std::vector<int32_t> stop = model.weights->config.eos_tokens;
  if (model.tokenizer != nullptr && model.tokenizer->eos_token() >= 0) stop.push_back(model.tokenizer->eos_token());
  return stop;
}

Conversation::Conversation(Decoder& decoder, const Model& model, const ChatOptions& options)
    : decoder_(decoder),
      model_(model),
      template_(RequireChatTemplate(model)),
      stop_(StopTokens(model)),
      messages_(Opening(options)),
      cache_(decoder.config(), decoder.plan(), std::min(kFirstCapacity, decoder.config().max_positions)) {}

GenerationResult Conversation::Reply(const std::string& message, GenerationRequest request) {
  const Tokenizer& tokenizer = model_.RequireTokenizer();
  messages_.push_back({"user", message});
  const std::vector<int32_t> tokens = tokenizer.Encode(template_->Render(messages_));
  const int64_t length = std::ssize(tokens), context = decoder_.config().max_positions;
  Check(length < context, "the conversation has {} tokens and fills the model's context of {}; start a new one", length,
        context);
  request.max_tokens = std::min(request.max_tokens, context - length);
  request.stop = stop_;
  const int64_t wanted = length + request.max_tokens;
  if (wanted > cache_.capacity()) {
    cache_ = KvCache(decoder_.config(), decoder_.plan(), std::min(context, std::max(wanted, 2 * cache_.capacity())));
    held_.clear();
  }
  // The last token is always computed, because the reply follows from its row.
  const auto end = tokens.begin() + std::min(length - 1, this->length());
  const auto kept = std::mismatch(tokens.begin(), end, held_.begin()).first - tokens.begin();
  cache_.Truncate(kept);
  computed_ = length - kept;
  GenerationResult result = Continue(decoder_, cache_, std::span(tokens).subspan(static_cast<size_t>(kept)), request);
  held_ = tokens;
  held_.insert(held_.end(), result.tokens.begin(), result.tokens.end());
  held_.resize(static_cast<size_t>(cache_.size()));
  std::vector<int32_t> spelled = result.tokens;
  std::erase_if(spelled, [&](int32_t token) { return token >= tokenizer.vocab_size(); });
  messages_.push_back({"assistant", tokenizer.Decode(spelled, true)});
  return result;
}

}  // namespace shiftrt
