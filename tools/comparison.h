// SPDX-License-Identifier: Apache-2.0
// What `run` measures of each variant: size, perplexity, speed and a continuation of a prompt.
#pragma once

#include <string>
#include <vector>

#include "models/variant.h"
#include "runtime/context.h"
#include "runtime/progress.h"
#include "tools/chat.h"
#include "tools/report/page.h"
#include "tools/texts.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct ComparisonOptions {
  std::string text, protocol = "gptq", prompt = "It is a truth universally acknowledged, that";
  ChatOptions chat;
  int64_t max_tokens = 40, text_tokens = 0;

  // Adds --text, --text-tokens, --protocol, --prompt, --chat, --system and --max-tokens.
  void AddTo(CLI::App& app);
};

// Tokens that each variant decodes at most, one at a time, for its continuation and its speed; by the first process.
int64_t DecodedTokens(const ComparisonOptions& options);

// The input of Compare(). It holds references; its maker keeps the objects alive.
struct ComparisonJob {
  const Context& context;
  const Model& model;
  const HeldOutText& heldout;
  const ComparisonOptions& options;
  uint64_t seed;
  Progress& progress;
};

// Perplexity and continuation of one variant after the other, then decoding speed in turns, so that a machine whose
// speed changes treats all alike.
// Of several processes, only the first, or those that hold the first model together, measure speed and continue the
// prompt.
std::vector<MeasuredVariant> Compare(const ComparisonJob& job, const std::vector<Variant>& variants);

PageTable ComparisonTable(const std::vector<MeasuredVariant>& variants);
void PrintComparison(const ComparisonJob& job, const std::vector<MeasuredVariant>& variants);

}  // namespace shiftrt
