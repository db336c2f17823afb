// SPDX-License-Identifier: Apache-2.0
#include "eval/requests.h"

#include <algorithm>

#include "eval/harness/text.h"
#include "runtime/check.h"

namespace shiftrt {

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer, Bos bos, int64_t max_length)
    : tokenizer_(tokenizer),
      adds_bos_(bos == Bos::kAlways || (bos == Bos::kAuto && tokenizer.adds_bos())),
      max_length_(max_length) {
  if (adds_bos_ && tokenizer.prefix().empty() && tokenizer.bos_token() < 0)
    FailUsage(Field("bos"), "always, but the tokenizer has no BOS token");
  if (Prefix() >= 0) prefix_text_ = tokenizer.Piece(Prefix());
}

int32_t PromptEncoder::Prefix() const {
  return tokenizer_.bos_token() >= 0 ? tokenizer_.bos_token() : tokenizer_.eos_token();
}

std::vector<int32_t> PromptEncoder::EncodeText(std::string_view text) const {
  std::vector<int32_t> tokens = tokenizer_.Encode(text);
  if (!adds_bos_ || (!prefix_text_.empty() && text.starts_with(prefix_text_))) return tokens;
  const std::vector<int32_t>& all = tokenizer_.prefix();
  if (all.empty()) {
    tokens.insert(tokens.begin(), tokenizer_.bos_token());
  } else {
    tokens.insert(tokens.begin(), all.begin(), all.end());
  }
  return tokens;
}

ScoringRequest PromptEncoder::Encode(const Prompt& prompt, const std::string& where) {
  const std::string_view context = StripRight(prompt.context);
  ScoringRequest request;
  if (prompt.context.empty()) {
    Check(Prefix() >= 0, "{}: an empty context, and the tokenizer has neither BOS nor EOS to stand for it", where);
    request.tokens = tokenizer_.Encode(prompt.continuation);
    if (request.tokens.empty() || request.tokens[0] != Prefix())
      request.tokens.insert(request.tokens.begin(), Prefix());
    request.scored = std::ssize(request.tokens) - 1;
  } else {
    if (context != context_ || context_tokens_.empty()) {
      context_ = context;
      context_tokens_ = EncodeText(context);
    }
    const std::vector<int32_t> whole = EncodeText(prompt.context + prompt.continuation);
    request.scored = std::ssize(whole) - std::ssize(context_tokens_);
    request.tokens = context_tokens_;
    if (request.scored > 0) request.tokens.insert(request.tokens.end(), whole.end() - request.scored, whole.end());
  }
  Check(request.scored > 0, "{}: no token is left for the answer \"{}\"", where, prompt.continuation);
  Check(request.scored <= max_length_, "{}: the answer has {} tokens, the model's context {}", where, request.scored,
        max_length_);
  Check(request.scored < std::ssize(request.tokens), "{}: no token stands before the answer", where);
  const int64_t excess = std::ssize(request.tokens) - (max_length_ + 1);
  if (excess > 0) request.tokens.erase(request.tokens.begin(), request.tokens.begin() + excess);
  return request;
}

std::vector<ScoringRequest> PromptEncoder::EncodeRolling(const std::string& text) const {
  Check(Prefix() >= 0, "a document needs a first token, and the tokenizer has neither BOS nor EOS");
  std::vector<int32_t> tokens = EncodeText(text);
  tokens.insert(tokens.begin(), Prefix());
  std::vector<ScoringRequest> windows;
  // tokens[0] predicts and is not predicted; every window predicts max_length tokens but the last, which predicts what
  // is left from as long a context as fits.
  const int64_t count = std::ssize(tokens) - 1;
  for (int64_t done = 0; done < count;) {
    const int64_t scored = std::min(max_length_, count - done), end = done + scored + 1;
    const int64_t begin = done == 0 ? 0 : end - (max_length_ + 1);
    windows.push_back({{tokens.begin() + begin, tokens.begin() + end}, scored});
    done += scored;
  }
  return windows;
}

std::vector<int32_t> PromptEncoder::EncodePrompt(const std::string& text, int64_t room,
                                                 const std::string& where) const {
  Check(room < max_length_, "{}: a reply may have {} tokens, and the model's context of {} leaves none for the prompt",
        where, room, max_length_);
  std::vector<int32_t> tokens = EncodeText(text);
  Check(!tokens.empty(), "{}: the prompt has no token", where);
  if (const int64_t excess = std::ssize(tokens) - (max_length_ - room); excess > 0)
    tokens.erase(tokens.begin(), tokens.begin() + excess);
  return tokens;
}

}  // namespace shiftrt
