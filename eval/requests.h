// SPDX-License-Identifier: Apache-2.0
// Prompts as token ids, cut where the reference cuts them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/dataset.h"
#include "tokenizers/tokenizer.h"
#include "types/suites.h"

namespace shiftrt {

// The last `scored` tokens are to be scored, each given all before it.
struct ScoringRequest {
  std::vector<int32_t> tokens;
  int64_t scored = 0;
};

class PromptEncoder {
 public:
  // `max_length`: the model's context. Throws UsageError for kAlways with a tokenizer that has no BOS token.
  PromptEncoder(const Tokenizer& tokenizer, Bos bos, int64_t max_length);

  // Trailing space of the context moves to the continuation; the two are encoded together, and the continuation is
  // what follows as many tokens as the context has alone. Of more than max_length + 1 tokens the last stay. Throws
  // Error naming `where` for a continuation that is empty or longer than max_length.
  ScoringRequest Encode(const Prompt& prompt, const std::string& where);
  // A document from its beginning, in windows of max_length that overlap by one token; the first is led by BOS (or EOS,
  // where there is no BOS).
  std::vector<ScoringRequest> EncodeRolling(const std::string& text) const;
  // A text that the model is to continue by up to `room` tokens: its last max_length - room tokens. Throws Error naming
  // `where` for a text without tokens, and where no token would be left.
  std::vector<int32_t> EncodePrompt(const std::string& text, int64_t room, const std::string& where) const;
  bool adds_bos() const { return adds_bos_; }

 private:
  std::vector<int32_t> EncodeText(std::string_view text) const;
  int32_t Prefix() const;

  const Tokenizer& tokenizer_;
  bool adds_bos_;
  int64_t max_length_;
  std::string prefix_text_;  // the prefix token as a text may spell it
  std::string context_;      // the last call's, which its choices share
  std::vector<int32_t> context_tokens_;
};

}  // namespace shiftrt
