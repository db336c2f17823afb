// SPDX-License-Identifier: Apache-2.0
// Replies to prompts, which the reference requests as "generate_until": greedy, up to a number of tokens or a stop
// text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/evaluate.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {

// The texts that end a reply, and how they are found in its tokens.
class StopTexts {
 public:
  // The text of the tokenizer's EOS token ends a reply, too.
  StopTexts(const Tokenizer& tokenizer, std::vector<std::string> texts);

  // Says whether the last tokens of a reply have one of the texts, special tokens included: as many of the last tokens
  // are read as the text has, and two more, as in the reference.
  bool Ends(std::span<const int32_t> tokens) const;
  // The text of a reply without special tokens, cut before the first place of the first text, then of the next, and so
  // on.
  std::string Text(std::span<const int32_t> tokens) const;

 private:
  struct Stop {
    std::string text;
    size_t tokens = 0;  // that are read to find it
  };

  std::vector<int32_t> Known(std::span<const int32_t> tokens) const;

  const Tokenizer& tokenizer_;
  std::vector<Stop> stops_;
};

// Evaluate() for a task of replies.
EvalScores EvaluateReplies(const EvalJob& job, const Dataset& dataset);

}  // namespace shiftrt
