// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "shiftrt/error.h"
#include "shiftrt/runner.h"
#include "tools/cache.h"
#include "tools/chat.h"
#include "tools/line_reader.h"
#include "tools/options.h"
#include "tools/reply_journal.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

struct GenerateOptions {
  CommonOptions common;
  Resources resources = {};  // what `common` makes of its options
  std::string prompt;
  bool prompted = false;  // --prompt was given
  std::string prompts;    // a file; empty: none
  std::string out;        // the file for the replies; empty: standard output
  int64_t batch = 16, prompt_tokens = 0, limit = 0;
  ChatOptions chat;
  GenerationSettings settings{.max_tokens = 0};  // 0: kPromptTokens or kChatTokens
};

constexpr int64_t kPromptTokens = 64, kChatTokens = 512;  // by default

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// "stop" for a reply that the model ended, "length" for one that is as long as may be.
const char* FinishReason(bool stopped) { return stopped ? "stop" : "length"; }

void PrintSpeed(const Generation& reply, const GenerationSettings& settings) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  const int64_t count = std::ssize(reply.tokens);
  std::fprintf(stderr, "prompt: %td tokens, %.1f tokens/s; generated: %td tokens, %.1f tokens/s, finish reason %s\n",
               reply.prompt_tokens, rate(reply.prompt_tokens, reply.prefill_seconds), count,
               rate(std::max<int64_t>(count - 1, 0), reply.decode_seconds), FinishReason(count < settings.max_tokens));
}

void ContinuePrompt(const GenerateOptions& options, ModelRunner& runner) {
  bool begun = false;  // the prompt is printed once it is known to fit
  const auto begin = [&] {
    if (!std::exchange(begun, true)) Print(options.prompt);
  };
  GenerationSettings settings = options.settings;
  settings.on_text = [&](std::string_view text) {
    begin();
    Print(text);
  };
  const Generation reply = runner.Generate(options.prompt, settings);
  begin();
  Print("\n");
  if (!options.common.quiet) PrintSpeed(reply, settings);
}

// Throws Error naming the file and the place in it for a last prompt that is empty or leaves no room for the reply.
void CheckPrompt(const GenerateOptions& options, const std::vector<std::vector<int32_t>>& prompts, int64_t positions) {
  const int64_t tokens = std::ssize(prompts.back()), wanted = options.settings.max_tokens;
  Check(tokens > 0, "{}: prompt {} is empty", options.prompts, prompts.size());
  Check(wanted <= positions - tokens,
        "{}: prompt {} has {} tokens, which leaves {} of the model's context of {} for its reply, and --max-tokens is "
        "{}; lower it, or cut the prompts with --prompt-tokens",
        options.prompts, prompts.size(), tokens, std::max<int64_t>(0, positions - tokens), positions, wanted);
}

std::vector<std::vector<int32_t>> EncodePrompts(const GenerateOptions& options, const LanguageModel& model) {
  PullMissingTexts(options.prompts, options.common);
  std::vector<std::string> texts = ReadPrompts(options.prompts, options.chat.chat);
  if (options.limit > 0 && std::ssize(texts) > options.limit) texts.resize(static_cast<size_t>(options.limit));
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : texts) {
    try {
      prompts.push_back(options.chat.chat ? model.EncodeMessage(text, options.chat.system) : model.Encode(text));
    } catch (const UsageError&) {
      throw;  // an option is wrong, and not this prompt
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      throw Error(fmt::format("{}: prompt {}: {}", options.prompts, prompts.size() + 1, error.what()));
    }
    if (options.prompt_tokens > 0 && std::ssize(prompts.back()) > options.prompt_tokens)
      prompts.back().resize(static_cast<size_t>(options.prompt_tokens));
    CheckPrompt(options, prompts, model.Shape().max_positions);
  }
  return prompts;
}

// A line of JSON. In a chat, prompt and text are the conversation as the template writes it, so that they can be
// encoded again: with special tokens and the end of the reply, but without the BOS token that begins every text.
std::string ReplyLine(const GenerateOptions& options, const LanguageModel& model, std::span<const int32_t> prompt,
                      const Generation& reply) {
  const bool chat = options.chat.chat;
  if (const std::vector<int32_t> bos = model.Encode(""); chat && !bos.empty() && !prompt.empty())
    if (prompt.front() == bos.front()) prompt = prompt.subspan(1);
  const std::string before = model.Decode(prompt, chat);
  const std::string end = chat && reply.end >= 0 ? model.Decode(std::span(&reply.end, 1), true) : "";
  return Json({{"prompt", before},
               {"reply", reply.text},
               {"text", before + reply.text + end},
               {"tokens", std::ssize(reply.tokens)},
               {"finish_reason", FinishReason(reply.end >= 0)}})
      .dump();
}

// Counts of several calls of GenerateMany.
void AddTo(GenerationTotals& all, const GenerationTotals& some) {
  all.prompt_tokens += some.prompt_tokens;
  all.tokens += some.tokens;
  all.seconds += some.seconds;
}

// Prints the line of each reply, in the order of the prompts.
GenerationTotals PrintReplies(const GenerateOptions& options, const LanguageModel& model, ModelRunner& runner,
                              std::span<const std::vector<int32_t>> prompts, Progress& progress) {
  std::map<size_t, std::string> done;  // lines that wait for those of earlier prompts
  size_t printed = 0;
  return runner.GenerateMany(prompts, options.settings, options.batch, [&](size_t i, const Generation& reply) {
    done[i] = ReplyLine(options, model, prompts[i], reply) + "\n";
    for (auto next = done.find(printed); next != done.end(); next = done.find(++printed)) {
      Print(next->second);
      done.erase(next);
    }
    progress.Advance(1);
  });
}

// The key of all lines, for LineKey().
WorkKey KeyOfLines(const GenerateOptions& options, const LanguageModel& model) {
  const GenerationSettings& settings = options.settings;
  WorkKey key = CommandKey("lines of replies", model, options.resources);
  return key
      .Add("chat", options.chat.chat)  // decides how a line shows prompt and reply
      .Add("max_tokens", settings.max_tokens)
      .Add("temperature", settings.temperature)
      .Add("top_p", settings.top_p)
      .Add("top_k", settings.top_k);
}

std::string LineKey(WorkKey lines, std::span<const int32_t> prompt, uint64_t seed) {
  return lines.Add("seed", seed).Add("prompt", fmt::format("{}", fmt::join(prompt, " "))).Hash();
}

// Writes the lines to the file of --out, and keeps those that are finished if the command is interrupted.
GenerationTotals WriteReplies(const GenerateOptions& options, const LanguageModel& model, ModelRunner& runner,
                              std::span<const std::vector<int32_t>> prompts, Progress& progress) {
  ReplyJournal journal(options.out);
  for (const std::string& bad : journal.bad()) fmt::print(stderr, "shiftrt: {}; its reply is generated again\n", bad);
  const WorkKey lines = KeyOfLines(options, model);
  std::vector<std::string> keys;
  int64_t known = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    keys.push_back(LineKey(lines, prompts[i], options.settings.seed + i));
    if (journal.Find(keys.back()) != nullptr) ++known;
  }
  if (known > 0 && !options.common.quiet)
    fmt::print(stderr, "shiftrt: {} replies were finished before an interruption\n", known);
  progress.Advance(known);
  GenerationTotals totals;
  for (size_t first = 0, end = 0; first < prompts.size(); first = end) {
    for (end = first; end < prompts.size() && journal.Find(keys[end]) == nullptr;) ++end;
    if (end == first) {
      ++end;
      continue;
    }
    GenerationSettings settings = options.settings;
    settings.seed += first;
    AddTo(totals, runner.GenerateMany(prompts.subspan(first, end - first), settings, options.batch,
                                      [&](size_t i, const Generation& reply) {
                                        journal.Add(keys[first + i],
                                                    ReplyLine(options, model, prompts[first + i], reply));
                                        progress.Advance(1);
                                      }));
  }
  journal.Finish(keys);
  return totals;
}

// Continues every prompt of the file and makes a line of JSON for each.
void ContinueAll(const GenerateOptions& options, const LanguageModel& model, ModelRunner& runner) {
  const std::vector<std::vector<int32_t>> prompts = EncodePrompts(options, model);
  const auto progress = options.common.MakeProgress();
  progress->Begin("replies", std::ssize(prompts));
  const GenerationTotals totals =
      (options.out.empty() ? PrintReplies : WriteReplies)(options, model, runner, prompts, *progress);
  progress->End();
  if (!options.common.quiet)
    fmt::print(stderr, "{} replies: {} tokens of prompts, {} generated, {:.1f} s, {:.1f} generated tokens/s\n",
               prompts.size(), totals.prompt_tokens, totals.tokens, totals.seconds,
               totals.seconds > 0 ? static_cast<double>(totals.tokens) / totals.seconds : 0);
}

// Replies to the prompt, or else to each line of standard input.
void Chat(const GenerateOptions& options, ModelRunner& runner) {
  const bool terminal = !options.prompted && ::isatty(STDIN_FILENO) == 1;
  Conversation conversation(runner, options.chat.system);
  GenerationSettings settings = options.settings;
  settings.on_text = Print;
  const auto reply = [&](const std::string& message) {
    const Generation said = conversation.Reply(message, settings);
    Print("\n");
    if (!options.common.quiet) PrintSpeed(said, settings);
    ++settings.seed;  // every turn has draws of its own
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
  const bool many = !options.prompts.empty();
  if (!options.prompted && !options.chat.chat && !many)
    throw UsageError("generate: give a text with --prompt, many with --prompts FILE, or --chat");
  GenerationSettings& settings = options.settings;
  if (settings.max_tokens == 0) settings.max_tokens = options.chat.chat ? kChatTokens : kPromptTokens;
  settings.seed = options.common.seed;
  options.resources = options.common.MakeResources();
  const LanguageModel model = options.common.OpenLanguageModel();
  const int started = options.common.processes->size(), parts = options.common.processes->parts();
  if (started != parts)
    throw UsageError(fmt::format(
        "{} processes were started, and generate works in those that hold the model together: with this --split, "
        "{}",
        started, parts));
  if (parts > 1 && !options.out.empty())
    throw UsageError("--out continues from a file that one process writes: leave it out, or leave out --split");
  if (parts > 1 && !options.prompted && !many)
    throw UsageError(
        "--chat without --prompt reads lines that only one process is given: give --prompt, or leave out --split");
  ModelRunner runner(model, options.resources);
  if (many) {
    ContinueAll(options, model, runner);
  } else if (options.chat.chat) {
    Chat(options, runner);
  } else {
    ContinuePrompt(options, runner);
  }
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
  CLI::Option* const prompts =
      app.add_option("--prompts", options->prompts,
                     "continue every prompt of this file: a text file with one per line, or .jsonl, .json or .parquet\n"
                     "with documents or rows of Alpaca. Prints a line of JSON for each, in their order")
          ->excludes(prompt);
  app.add_option("--batch", options->batch, "with --prompts: how many are continued together, at most")
      ->check(CLI::Range(1, 1 << 12))
      ->needs(prompts)
      ->capture_default_str();
  app.add_option("--prompt-tokens", options->prompt_tokens, "with --prompts: the first so many tokens of each (all)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(prompts);
  app.add_option("--limit", options->limit, "with --prompts: the first so many prompts (all)")
      ->check(CLI::Range(1, 1 << 30))
      ->needs(prompts);
  app.add_option("--out", options->out,
                 "with --prompts: write the lines to this file instead. The same command continues where an "
                 "interrupted one\nhas ended; until the end, FILE.journal has the finished replies")
      ->check(FileOutput())
      ->check(JournalOutput(".journal"))
      ->needs(prompts);
  options->chat.AddTo(app);
  app.add_option("--max-tokens", options->settings.max_tokens,
                 fmt::format("largest number of tokens to generate, in a chat for each reply ({}, in a chat {})",
                             kPromptTokens, kChatTokens))
      ->check(CLI::Range(1, 1 << 20));
  CLI::Option* const temperature =
      app.add_option("--temperature", options->settings.temperature, "temperature of the sampling; 0: greedy")
          ->check(CLI::Range(0.0, 100.0))
          ->capture_default_str();
  app.add_option("--top-p", options->settings.top_p, "draw from the likeliest tokens with this total probability")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(temperature)
      ->capture_default_str();
  app.add_option("--top-k", options->settings.top_k, "draw from so many of the likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 22))
      ->needs(temperature)
      ->capture_default_str();
  app.footer(
      "With --chat and without --prompt, every line of standard input is one message of a single conversation, which "
      "ends with the input.\n\n"
      "Examples:\n  shiftrt generate --model demo --prompt \"It is a truth\"\n"
      "  shiftrt generate --model out --prompt \"In the beginning\" --temperature 0.8 --top-p 0.95 --seed 3\n"
      "  shiftrt generate --model SmolLM2-135M-Instruct --chat --prompt \"Why is the sky blue?\"\n"
      "  shiftrt generate --model SmolLM2-135M-Instruct --chat --system \"Answer in one sentence.\"\n"
      "  shiftrt generate --model out --prompts questions.txt --chat --batch 32 > answers.jsonl\n"
      "  shiftrt generate --model SmolLM2-135M --prompts c4.jsonl --prompt-tokens 16 --max-tokens 240 \\\n"
      "    --temperature 1 --out own.jsonl    (text of the model itself, for --calib)\n"
      "  mpirun -n 4 shiftrt generate --model Llama-2-70b-hf --prompt \"It is a truth\" --split 4    (docs/scale.md)");
  return [=] {
    options->prompted = prompt->count() > 0;
    return Run(*options);
  };
}

}  // namespace shiftrt
