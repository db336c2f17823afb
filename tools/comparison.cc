// SPDX-License-Identifier: Apache-2.0
#include "tools/comparison.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

void ComparisonOptions::AddTo(CLI::App& app) {
  app.add_option("--text", text, "held-out text for the perplexity (the demo model has its own)");
  AddTextTokens(app, text_tokens);
  app.add_option("--protocol", measured.protocol, "perplexity protocol: gptq or seq128")->capture_default_str();
  app.add_option("--prompt", measured.prompt, "text that every variant continues")->capture_default_str();
  chat.AddTo(app);
  app.add_option("--max-tokens", measured.max_tokens, "length of the continuation in tokens, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

ComparisonSettings ComparisonOptions::Settings() const {
  ComparisonSettings settings = measured;
  settings.chat = chat.chat;
  settings.system = chat.system;
  return settings;
}

PageTable ComparisonTable(const std::vector<MeasuredVariant>& variants) {
  PageTable table{{"model", "parameters", "bytes per token", "perplexity", "tokens/s"}, {}};
  for (const MeasuredVariant& v : variants)
    table.rows.push_back({v.label, Scaled(static_cast<double>(v.parameters), ""),
                          Scaled(static_cast<double>(v.bytes), "B"),
                          std::isnan(v.perplexity) ? "" : fmt::format("{:.2f}", v.perplexity),
                          fmt::format("{:.1f}", v.tokens_per_second)});
  return table;
}

void PrintComparison(const ComparisonSettings& settings, const HeldOutText& heldout, int64_t window,
                     const std::vector<MeasuredVariant>& variants) {
  const int64_t tokens = std::ssize(heldout.tokens);
  if (heldout.Scored()) {
    fmt::print("held-out perplexity ({}) on {}{}\n", settings.protocol, heldout.Description(),
               tokens < window ? fmt::format(", one window of {} tokens, because the text has no more", tokens) : "");
  } else {
    fmt::print(
        "no perplexity, because there is no held-out text: run with --text FILE, or `shiftrt ppl --model DIR --text "
        "FILE`"
        " on what --save DIR has saved\n");
  }
  fmt::print("{}\n\"{}\" ...\n", Table(ComparisonTable(variants)).Text(), settings.prompt);
  for (const MeasuredVariant& v : variants) fmt::print("  {}:{}\n", v.label, Indented(v.continuation));
}

}  // namespace shiftrt
