// SPDX-License-Identifier: Apache-2.0
#include "tools/comparison.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "api/chat.h"
#include "engine/generate.h"
#include "eval/perplexity.h"
#include "runtime/median.h"
#include "runtime/processes.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

constexpr int kSpeedRounds = 5;
constexpr int64_t kSpeedTokens = 24;

// Everything but the speed.
MeasuredVariant MeasureVariant(const ComparisonJob& job, const Variant& variant, Decoder& decoder) {
  const ComparisonOptions& options = job.options;
  const Tokenizer& tokenizer = job.model.RequireTokenizer();
  const std::vector<int32_t> prompt = PromptTokens(job.model, options.prompt, options.chat);
  MeasuredVariant measured;
  measured.name = variant.name;
  measured.label = variant.label;
  measured.parameters = decoder.Parameters();
  measured.bytes = decoder.BytesPerToken();
  const int64_t window = ProtocolWindow(options.protocol, decoder.config());
  if (job.heldout.Scored())
    measured.perplexity =
        WindowedPerplexity(decoder, job.heldout.tokens, window, options.protocol, job.progress).perplexity;
  if (job.context.processes->group() > 0) return measured;  // one model alone writes text
  job.progress.Begin("continuing the prompt", options.max_tokens);
  auto reply = Generate(decoder, prompt, options.max_tokens, {}, job.seed, StopTokens(job.model), [&](int32_t) {
    job.progress.Advance(1);
    return true;
  });
  job.progress.End();
  // A vocabulary padded beyond the tokenizer's has ids that stand for no text.
  std::erase_if(reply.tokens, [&](int32_t token) { return token >= tokenizer.vocab_size(); });
  measured.continuation =
      options.chat.chat ? tokenizer.Decode(reply.tokens, true) : DecodeReply(tokenizer, prompt, reply.tokens);
  return measured;
}

}  // namespace

void ComparisonOptions::AddTo(CLI::App& app) {
  app.add_option("--text", text, "held-out text for the perplexity (the demo model has its own)");
  AddTextTokens(app, text_tokens);
  app.add_option("--protocol", protocol, "perplexity protocol: gptq or seq128")->capture_default_str();
  app.add_option("--prompt", prompt, "text that every variant continues")->capture_default_str();
  chat.AddTo(app);
  app.add_option("--max-tokens", max_tokens, "length of the continuation in tokens, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

int64_t DecodedTokens(const ComparisonOptions& options) { return options.max_tokens + kSpeedRounds * kSpeedTokens; }

std::vector<MeasuredVariant> Compare(const ComparisonJob& job, const std::vector<Variant>& variants) {
  std::vector<Decoder> decoders;
  std::vector<MeasuredVariant> measured;
  for (const Variant& variant : variants) {
    Decoder& decoder = decoders.emplace_back(job.context, job.model.weights, variant.plan);
    measured.push_back(MeasureVariant(job, variant, decoder));
  }
  if (job.context.processes->group() > 0) return measured;
  const std::vector<int32_t> prompt = PromptTokens(job.model, job.options.prompt, job.options.chat);
  const int64_t room = job.model.weights->config.max_positions - static_cast<int64_t>(prompt.size());
  const int64_t tokens = std::min(kSpeedTokens, room);
  std::vector<std::vector<double>> speed(variants.size());
  job.progress.Begin("timing", kSpeedRounds * static_cast<int64_t>(variants.size()));
  for (int round = 0; round < kSpeedRounds; ++round) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto reply = Generate(decoders[v], prompt, tokens, {}, job.seed, {});
      speed[v].push_back(static_cast<double>(reply.tokens.size() - 1) / reply.decode_seconds);
      job.progress.Advance(1);
    }
  }
  job.progress.End();
  for (size_t v = 0; v < variants.size(); ++v) measured[v].tokens_per_second = Median(speed[v]);
  return measured;
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

void PrintComparison(const ComparisonJob& job, const std::vector<MeasuredVariant>& variants) {
  const int64_t tokens = std::ssize(job.heldout.tokens),
                window = ProtocolWindow(job.options.protocol, job.model.weights->config);
  if (job.heldout.Scored()) {
    fmt::print("held-out perplexity ({}) on {}{}\n", job.options.protocol, job.heldout.Description(),
               tokens < window ? fmt::format(", one window of {} tokens, because the text has no more", tokens) : "");
  } else {
    fmt::print(
        "no perplexity, because there is no held-out text: run with --text FILE, or `shiftrt ppl --model DIR --text "
        "FILE`"
        " on what --save DIR has saved\n");
  }
  const PageTable comparison = ComparisonTable(variants);
  Table table(comparison.header);
  for (const std::vector<std::string>& row : comparison.rows) table.Add(row);
  fmt::print("{}\n\"{}\" ...\n", table.Text(), job.options.prompt);
  for (const MeasuredVariant& v : variants) {
    std::string line = v.continuation;
    std::replace(line.begin(), line.end(), '\n', ' ');
    fmt::print("  {}: {}\n", v.label, line);
  }
}

}  // namespace shiftrt
