// SPDX-License-Identifier: Apache-2.0
/// \file
/// Settings and results of generation, and the messages of a conversation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

/// A message of a conversation.
struct ChatMessage {
  std::string role;     ///< "system", "user" or "assistant"
  std::string content;  ///< UTF-8
};

/// Says how ModelRunner::Generate chooses tokens and when it stops.
struct GenerationSettings {
  int64_t max_tokens = 64;  ///< tokens to generate at most, at least 1
  double temperature = 0;   ///< 0: always the most likely token; finite and not negative
  double top_p = 1;         ///< choose among the most likely tokens that have this probability together; 0 to 1
  int64_t top_k = 0;        ///< choose among this many of the most likely tokens; 0: among all
  uint64_t seed = 0;        ///< seed of the random numbers; the same seed gives the same tokens
  bool stop_at_end = true;  ///< stop before an end-of-sequence token of the model
  /// Called with each piece of the generated text as soon as its characters are whole.
  std::function<void(std::string_view text)> on_text = {};
};

/// Says what ModelRunner::Generate has generated.
struct Generation {
  std::vector<int32_t> tokens;  ///< generated token ids, without the prompt
  int64_t prompt_tokens = 0;    ///< tokens of the prompt that were computed
  std::string text;             ///< text that they add to the prompt, without special tokens
  double prefill_seconds = 0;   ///< time for the prompt, the first token included
  double decode_seconds = 0;    ///< time for all tokens after the first
  /// The end-of-sequence token that ended a reply of GenerateMany(); -1 if something else ended it.
  int32_t end = -1;
};

/// ModelRunner::GenerateMany counts and times all replies together.
struct GenerationTotals {
  int64_t prompt_tokens = 0;  ///< tokens of all prompts
  int64_t tokens = 0;         ///< generated tokens of all replies
  double seconds = 0;         ///< time for both
};

}  // namespace shiftrt
