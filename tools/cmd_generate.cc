// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "engine/generate.h"
#include "runtime/check.h"
#include "tools/chat.h"
#include "tools/line_reader.h"
#include "tools/options.h"

namespace shiftrt {

namespace {

struct GenerateOptions {
  CommonOptions common;
  std::string prompt;
  bool prompted = false;  // --prompt was given
  ChatOptions chat;
  int64_t max_tokens = 0;
  SamplingOptions sampling;
};

constexpr int64_t kPromptTokens = 64, kChatTokens = 512;  // by default

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void PrintSpeed(int64_t prompt, const GenerationResult& result) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  const int64_t count = std::ssize(result.tokens);
  std::fprintf(stderr, "prompt: %td tokens, %.1f tokens/s; generated: %td tokens, %.1f tokens/s\n", prompt,
               rate(prompt, result.prefill_seconds), count,
               rate(std::max<int64_t>(count - 1, 0), result.decode_seconds));
}

// Prints tokens as text.
class Printer {
 public:
  explicit Printer(const Tokenizer& tokenizer) : tokenizer_(tokenizer), text_(tokenizer) {}

  // Text that is already there, so that what follows keeps its space.
  void Follow(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) text_.Push(token);
  }
  bool operator()(int32_t token) {
    if (token < tokenizer_.vocab_size()) Print(text_.Push(token));  // else padding of the vocabulary
    return true;
  }
  void Finish() { Print(text_.Finish() + "\n"); }

 private:
  const Tokenizer& tokenizer_;
  StreamingDecoder text_;
};

void ContinuePrompt(const GenerateOptions& options, const Model& model, Decoder& decoder) {
  const std::vector<int32_t> prompt = PromptTokens(model, options.prompt, {});
  CheckFits(std::ssize(prompt), options.max_tokens, decoder.config());  // before a word is printed
  Printer printer(model.RequireTokenizer());
  Print(options.prompt);
  printer.Follow(prompt);
  const GenerationResult result = Generate(decoder, prompt, options.max_tokens, options.sampling, options.common.seed,
                                           StopTokens(model), std::ref(printer));
  printer.Finish();
  if (!options.common.quiet) PrintSpeed(std::ssize(prompt), result);
}

// Replies to the prompt, or else to each line of standard input.
void Chat(const GenerateOptions& options, const Model& model, Decoder& decoder) {
  const bool terminal = !options.prompted && ::isatty(STDIN_FILENO) == 1;
  Conversation conversation(decoder, model, options.chat);
  GenerationRequest request{options.max_tokens, options.sampling, options.common.seed, {}, {}};
  const auto reply = [&](const std::string& message) {
    Printer printer(model.RequireTokenizer());
    request.on_token = std::ref(printer);
    const GenerationResult result = conversation.Reply(message, request);
    printer.Finish();
    if (!options.common.quiet) PrintSpeed(conversation.computed(), result);
    ++request.seed;  // every turn has draws of its own
  };
  if (options.prompted) return reply(options.prompt);
  LineReader lines;
  const char* const mark = terminal ? "> " : "";
  Print(mark);
  while (const auto line = lines.Next()) {
    if (line->find_first_not_of(" \t") != std::string::npos) reply(*line);
    Print(mark);
  }
  if (terminal) Print("\n");
}

int Run(GenerateOptions options) {
  if (!options.prompted && !options.chat.chat) FailUsage("generate: give a text with --prompt, or --chat");
  if (options.max_tokens == 0) options.max_tokens = options.chat.chat ? kChatTokens : kPromptTokens;
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const int started = context.processes->size(), parts = context.processes->parts();
  if (started != parts)
    FailUsage(
        "{} processes were started, and generate works in those that hold the model together: with this --split, "
        "{}",
        started, parts);
  if (parts > 1 && !options.prompted)
    FailUsage(
        "--chat without --prompt reads lines that only one process is given: give --prompt, or leave out --split");
  Decoder decoder(context, model.weights, model.plan);
  options.chat.chat ? Chat(options, model, decoder) : ContinuePrompt(options, model, decoder);
  return 0;
}

}  // namespace

Command AddGenerate(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<GenerateOptions>();
  options->common = CommonOptions(processes);
  options->common.AddTo(app);
  options->common.AddLoraTo(app);
  options->common.AddSplitTo(app);
  options->common.AddSeedTo(app, "sampling");
  options->common.AddQuietTo(app);
  CLI::Option* const prompt =
      app.add_option("--prompt", options->prompt, "text to continue; with --chat, the user's message");
  options->chat.AddTo(app);
  app.add_option("--max-tokens", options->max_tokens,
                 fmt::format("largest number of tokens to generate, in a chat for each reply ({}, in a chat {})",
                             kPromptTokens, kChatTokens))
      ->check(CLI::Range(1, 1 << 20));
  CLI::Option* const temperature =
      app.add_option("--temperature", options->sampling.temperature, "temperature of the sampling; 0: greedy")
          ->check(CLI::Range(0.0, 100.0))
          ->capture_default_str();
  app.add_option("--top-p", options->sampling.top_p, "draw from the likeliest tokens with this total probability")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(temperature)
      ->capture_default_str();
  app.add_option("--top-k", options->sampling.top_k, "draw from so many of the likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 22))
      ->needs(temperature)
      ->capture_default_str();
  app.footer(
      "With --chat and without --prompt, every line of standard input is a message of one conversation; its end ends "
      "it.\n\n"
      "Examples:\n  shiftrt generate --model demo --prompt \"It is a truth\"\n"
      "  shiftrt generate --model out --prompt \"In the beginning\" --temperature 0.8 --top-p 0.95 --seed 3\n"
      "  shiftrt generate --model SmolLM2-135M-Instruct --chat --prompt \"Why is the sky blue?\"\n"
      "  shiftrt generate --model SmolLM2-135M-Instruct --chat --system \"Answer in one sentence.\"\n"
      "  mpirun -n 4 shiftrt generate --model Llama-2-70b-hf --prompt \"It is a truth\" --split 4    (docs/scale.md)");
  return [=] {
    options->prompted = prompt->count() > 0;
    return Run(*options);
  };
}

}  // namespace shiftrt
