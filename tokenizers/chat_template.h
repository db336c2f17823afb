// SPDX-License-Identifier: Apache-2.0
// Turns a conversation into the text that an instruct model was trained to read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "include/shiftrt/generation.h"
#include "tokenizers/jinja.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {

class ChatTemplate {
 public:
  // `special_tokens` become variables of the template: bos_token, eos_token and the like. Throws as JinjaTemplate does.
  ChatTemplate(std::string_view text, const std::string& name, std::map<std::string, std::string> special_tokens);

  // The text of the conversation up to the beginning of the model's next reply. Equal to transformers'
  // apply_chat_template(messages, add_generation_prompt=True, tokenize=False). Encode it without adding BOS, because
  // the template writes BOS itself. Throws Error if the template refuses the conversation.
  std::string Render(std::span<const ChatMessage> messages) const;
  // Renders with any of transformers' variables: "messages", "tools", "documents", "add_generation_prompt", ...
  std::string Render(const nlohmann::ordered_json& variables) const;

 private:
  JinjaTemplate template_;
  std::map<std::string, std::string> special_tokens_;
};

struct ChatTemplateText {
  std::string text;
  std::filesystem::path file;
};
// Returns the template of a model and the file that has it, as LoadChatTemplate finds it, without parsing it.
std::optional<ChatTemplateText> FindChatTemplate(const std::filesystem::path& model);

/// The directory next to a model in which transformers keeps each further template as NAME.jinja.
inline constexpr const char* kFurtherTemplates = "additional_chat_templates";

/// \param model The directory of a model.
/// \return The files of further templates in it, in the order of their names.
std::vector<std::filesystem::path> FurtherTemplateFiles(const std::filesystem::path& model);

/// \param model The directory of a model.
/// \return The names of the templates besides the one that FindChatTemplate finds, such as "tool_use".
/// \throws Error naming the file for a tokenizer_config.json that is no JSON.
std::vector<std::string> FurtherTemplates(const std::filesystem::path& model);

// Loads the template of a GGUF file, or of a model directory: chat_template.jinja, or else "chat_template" of
// tokenizer_config.json (the one named "default" if there are several), or else chat_template.json. Null if there is
// none. Throws Error naming the file. Special tokens are those that tokenizer_config.json and special_tokens_map.json
// name, and otherwise the tokenizer's BOS and EOS.
std::unique_ptr<ChatTemplate> LoadChatTemplate(const std::filesystem::path& model, const Tokenizer& tokenizer);

}  // namespace shiftrt
