// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>

#include "models/gguf.h"

namespace shiftrt {

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 31;
constexpr int64_t kOrdinary = 1;  // tokenizer.ggml.token_type

// The texts with which llama.cpp ends a reply, of whatever type the token is. Source: llama.cpp's llama-vocab.cpp.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|flush|>",
                                          "<|calls|>",
                                          "<end_of_turn>",
                                          "<|endoftext|>",
                                          "</s>",
                                          "<|eom_id|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "<|end_of_text|>",
                                          "<end_of_utterance>",
                                          "<eos>",
                                          "<turn|>",
                                          "<|tool_response>",
                                          "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
                                          "[e~["};

// Two of the texts end a part of a reply, and not the reply, in vocabularies that have certain others.
bool EndsOnlyAPart(std::string_view text, const std::vector<std::string_view>& found) {
  const auto has = [&](std::string_view other) { return std::find(found.begin(), found.end(), other) != found.end(); };
  if (text == "<|end|>") return (has("<|return|>") || has("<|flush|>")) && (has("<|call|>") || has("<|calls|>"));
  return text == "</s>" && has("<|tool_response>");
}

}  // namespace

bool EndsGgufReply(std::string_view text) {
  return std::find(std::begin(kEndTexts), std::end(kEndTexts), text) != std::end(kEndTexts);
}

std::vector<int64_t> GgufEndTokens(const GgufMetadata& metadata) {
  std::vector<int64_t> ends;
  const auto add = [&](int64_t id) {
    if (id >= 0 && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  };
  for (const char* key : {kGgufEndOfText, kGgufEndOfTurn, "tokenizer.ggml.eom_token_id"})
    add(metadata.Integer(key, 0, kMostTokens, -1));
  if (!metadata.Has("tokenizer.ggml.tokens")) return ends;
  const std::vector<std::string_view> tokens = metadata.Texts("tokenizer.ggml.tokens");
  std::vector<int64_t> types;
  if (metadata.Has("tokenizer.ggml.token_type")) types = metadata.Integers("tokenizer.ggml.token_type");
  std::vector<int64_t> by_text;
  std::vector<std::string_view> texts;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!EndsGgufReply(tokens[id])) continue;
    // Qwen's vocabulary has the end of a struck-out text in HTML as an ordinary piece.
    if (tokens[id] == "</s>" && id < types.size() && types[id] == kOrdinary) continue;
    by_text.push_back(static_cast<int64_t>(id));
    texts.push_back(tokens[id]);
  }
  for (size_t i = 0; i < by_text.size(); ++i)
    if (!EndsOnlyAPart(texts[i], texts)) add(by_text[i]);
  return ends;
}

}  // namespace shiftrt
