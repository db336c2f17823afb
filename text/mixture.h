// SPDX-License-Identifier: Apache-2.0
// Lists of texts to learn from: NAME|FILE or own[:NAME|FILE], with a share after each, as in
// "own:alpaca:70%,c4.jsonl:30%".
#pragma once

#include <string>
#include <vector>

namespace shiftrt {

// The prompts that the original model answers where "own" stands alone.
inline constexpr const char* kOwnPrompts = "alpaca";

struct MixedText {
  std::string name;  // the text, or the prompts, as ResolveText takes it
  bool own = false;  // the text is what the original model answers to the prompts
  double share = 0;  // this text's share of the tokens; 0: the documents of all texts are mixed as they come
};

// The texts of a list. Shares that are left out divide equally what the others leave, where some text has a share or is
// the model's own. Throws UsageError for the field "text" if shares are malformed or do not add up to 100%.
std::vector<MixedText> MixtureIn(const std::string& list);

// True if one of them is the model's own.
bool HasOwnTexts(const std::string& list);

// The names of these texts and prompts, with commas between them, as TextsIn takes them; "" for an empty list.
std::string NamesIn(const std::string& list);

}  // namespace shiftrt
