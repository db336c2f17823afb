// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/chat_template.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <system_error>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/gguf.h"
#include "tokenizers/gguf.h"
#include "tokenizers/load.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kConfig = "tokenizer_config.json";

// The text of "chat_template" in one file: a string, or a list of named ones.
std::optional<std::string> TemplateIn(const json& config, const std::string& name) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  Check(found->is_array(), "{}: chat_template is neither a string nor a list", name);
  std::string names;
  for (const json& entry : *found) {
    Check(entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") &&
              entry["template"].is_string(),
          "{}: chat_template: an entry without a name and a template", name);
    if (entry["name"] == "default") return entry["template"].get<std::string>();
    names += (names.empty() ? "" : ", ") + entry["name"].get<std::string>();
  }
  Fail("{}: chat_template: none of the templates is called \"default\" ({})", name, names);
}

// Named tokens as transformers passes them to a template.
std::map<std::string, std::string> SpecialTokens(const fs::path& directory, const json& config,
                                                 const Tokenizer& tokenizer) {
  std::map<std::string, std::string> tokens;
  const json map = ReadTokenizerJsonIfPresent(directory / "special_tokens_map.json");
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const json* const holder = config.contains(key) ? &config : map.contains(key) ? &map : nullptr;
    const json token = holder != nullptr ? holder->at(key) : json();
    if (token.is_string()) tokens[key] = token.get<std::string>();
    if (token.is_object() && token.contains("content") && token["content"].is_string())
      tokens[key] = token["content"].get<std::string>();
    if (holder != nullptr) continue;
    const int32_t id = std::string_view(key) == "bos_token"   ? tokenizer.bos_token()
                       : std::string_view(key) == "eos_token" ? tokenizer.eos_token()
                                                              : -1;
    if (id >= 0) tokens[key] = tokenizer.Piece(id);
  }
  return tokens;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view text, const std::string& name,
                           std::map<std::string, std::string> special_tokens)
    : template_(text, name), special_tokens_(std::move(special_tokens)) {}

std::string ChatTemplate::Render(std::span<const ChatMessage> messages) const {
  ordered_json list = ordered_json::array();
  for (const ChatMessage& message : messages) {
    ordered_json one = ordered_json::object();
    one["role"] = message.role;
    one["content"] = message.content;
    list.push_back(std::move(one));
  }
  ordered_json variables = ordered_json::object();
  variables["messages"] = std::move(list);
  variables["add_generation_prompt"] = true;
  return Render(variables);
}

std::string ChatTemplate::Render(const ordered_json& variables) const {
  ordered_json all = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", false}};
  for (const auto& [name, token] : special_tokens_) all[name] = token;
  all.update(variables);
  return template_.Render(all, std::time(nullptr));
}

std::optional<ChatTemplateText> FindChatTemplate(const fs::path& model) {
  if (IsGguf(model)) {
    std::string text = GgufChatTemplate(GgufFile(model));
    return text.empty() ? std::nullopt : std::optional(ChatTemplateText{std::move(text), model});
  }
  const fs::path own = model / "chat_template.jinja";
  if (Exists(own)) return ChatTemplateText{ReadFile(own, JinjaTemplate::kMaxBytes), own};
  for (const char* name : {kConfig, "chat_template.json"}) {
    const fs::path file = model / name;
    if (auto text = TemplateIn(ReadTokenizerJsonIfPresent(file), file.string()))
      return ChatTemplateText{*std::move(text), file};
  }
  return std::nullopt;
}

std::vector<fs::path> FurtherTemplateFiles(const fs::path& model) {
  std::vector<fs::path> files;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(model / kFurtherTemplates, none))
    if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> FurtherTemplates(const fs::path& model) {
  std::vector<std::string> names;
  for (const fs::path& file : FurtherTemplateFiles(model)) names.push_back(file.stem().string());
  const json config = ReadTokenizerJsonIfPresent(model / kConfig);
  const auto listed = config.find("chat_template");
  if (listed == config.end() || !listed->is_array()) return names;
  for (const json& entry : *listed) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) continue;
    const std::string name = entry["name"].get<std::string>();
    if (name != "default" && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::unique_ptr<ChatTemplate> LoadChatTemplate(const fs::path& model, const Tokenizer& tokenizer) {
  const std::optional<ChatTemplateText> found = FindChatTemplate(model);
  if (!found) return nullptr;
  const json config = IsGguf(model) ? json::object() : ReadTokenizerJsonIfPresent(model / kConfig);
  return std::make_unique<ChatTemplate>(found->text, found->file.string(), SpecialTokens(model, config, tokenizer));
}

}  // namespace shiftrt
