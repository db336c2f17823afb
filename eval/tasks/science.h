// SPDX-License-Identifier: Apache-2.0
// The rows of AI2's science questions, which ARC and OpenBookQA share.
#pragma once

#include "eval/rows.h"

namespace shiftrt {

struct ScienceQuestion {
  std::string stem;
  std::vector<std::string> choices;
  int64_t gold = 0;
};

// Hugging Face's columns, a text `stem_column` with `choices` {text[], label[]}, or the original release's `question`
// {stem, choices [{text, label}]}; `answerKey` is one of the labels.
ScienceQuestion ReadScienceQuestion(const Row& row, const char* stem_column);

}  // namespace shiftrt
