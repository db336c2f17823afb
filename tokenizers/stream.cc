// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "tokenizers/tokenizer.h"

namespace shiftrt {

// Decode() concatenates the bytes of the pieces and writes U+FFFD for each incomplete character. The text of the first
// ids is therefore a prefix of the text of all ids, except for one U+FFFD at its end that later ids may complete.
std::string StreamingDecoder::Push(int32_t id) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  ids_.push_back(id);
  std::string text = tokenizer_.Decode(ids_);
  const bool unfinished = text.ends_with(kReplacement);
  if (unfinished) text.resize(text.size() - kReplacement.size());
  std::string fresh = text.substr(printed_.size());
  printed_ = std::move(text);
  if (unfinished) return fresh;
  // No bytes are held back, so this id alone is enough context for the next one, if it has visible text.
  std::string last = tokenizer_.Decode({&id, 1});
  if (!last.empty()) {
    ids_ = {id};
    printed_ = std::move(last);
  }
  return fresh;
}

std::string StreamingDecoder::Finish() {
  std::string fresh = ids_.empty() ? std::string() : tokenizer_.Decode(ids_).substr(printed_.size());
  ids_.clear();
  printed_.clear();
  return fresh;
}

}  // namespace shiftrt
