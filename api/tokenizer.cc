// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/model.h"
#include "runtime/check.h"
#include "runtime/json.h"
#include "tokenizers/chat_template.h"

namespace shiftrt {

struct ModelTokenizer::Impl {
  std::filesystem::path directory;
  std::unique_ptr<Tokenizer> tokenizer;
};

ModelTokenizer::ModelTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

ModelTokenizer ModelTokenizer::Open(const std::string& name) {
  return ModelTokenizer(std::make_shared<const Impl>(Impl{TokenizerDirectory(name), OpenTokenizer(name)}));
}

std::vector<int32_t> ModelTokenizer::Encode(std::string_view text, bool bos) const {
  return bos ? impl_->tokenizer->EncodeWithBos(text) : impl_->tokenizer->Encode(text);
}
std::string ModelTokenizer::Decode(std::span<const int32_t> tokens) const { return impl_->tokenizer->Decode(tokens); }
std::string ModelTokenizer::Piece(int32_t token) const { return std::string(impl_->tokenizer->Piece(token)); }
std::vector<std::string> ModelTokenizer::Notes() const { return impl_->tokenizer->notes(); }

std::string ModelTokenizer::RenderChat(std::string_view conversation, const std::string& name) const {
  using nlohmann::ordered_json;
  const auto chat = LoadChatTemplate(impl_->directory, *impl_->tokenizer);
  Check(chat != nullptr, "{}: there is no chat template", impl_->directory.string());
  ordered_json variables = ParseOrderedJson(std::string(conversation), name);
  if (variables.is_array()) {
    ordered_json messages = std::move(variables);
    variables = ordered_json::object();
    variables["messages"] = std::move(messages);
    variables["add_generation_prompt"] = true;
  }
  Check(variables.is_object() && variables.contains("messages") && variables["messages"].is_array(),
        "{}: neither a list of messages nor an object with \"messages\"", name);
  return chat->Render(variables);
}

}  // namespace shiftrt
