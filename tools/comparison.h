// SPDX-License-Identifier: Apache-2.0
// `run` shows size, perplexity, speed and a continuation of a prompt for each variant.
#pragma once

#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "tools/chat.h"
#include "tools/report/page.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct ComparisonOptions {
  std::string text;
  int64_t text_tokens = 0;
  ChatOptions chat;
  ComparisonSettings measured;  // all but what the chat's options say

  // Adds --text, --text-tokens, --protocol, --prompt, --chat, --system and --max-tokens.
  void AddTo(CLI::App& app);
  ComparisonSettings Settings() const;
};

PageTable ComparisonTable(const std::vector<MeasuredVariant>& variants);
// `window`: tokens of the protocol's.
void PrintComparison(const ComparisonSettings& settings, const HeldOutText& heldout, int64_t window,
                     const std::vector<MeasuredVariant>& variants);

}  // namespace shiftrt
