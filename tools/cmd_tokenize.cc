// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "shiftrt/error.h"
#include "shiftrt/tokenizer.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/standard_output.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

struct TokenizeOptions {
  CommonOptions common;
  std::string text, file, conversation;
  bool ids_only = false, decode = false, bos = false, many = false, rendered = false;
};

void PrintIds(const ModelTokenizer& tokenizer, const std::string& text, bool bos) {
  fmt::print("{}\n", fmt::join(tokenizer.Encode(text, bos), " "));
}

void Print(const TokenizeOptions& options, const ModelTokenizer& tokenizer, const std::string& text) {
  if (options.rendered) {
    fmt::print("{}", text);
  } else if (options.decode) {
    fmt::print("{}\n", tokenizer.Decode(ParseTokenIds(text)));
  } else if (options.many) {
    std::istringstream texts(text);
    for (std::string one; std::getline(texts, one, '\0');) PrintIds(tokenizer, one, options.bos);
  } else if (options.ids_only) {
    PrintIds(tokenizer, text, options.bos);
  } else {
    const std::vector<int32_t> ids = tokenizer.Encode(text, options.bos);
    for (const int32_t id : ids) fmt::print("{:>8}  {}\n", id, ForTerminal(tokenizer.Piece(id)));
    fmt::print("{} tokens\n", ids.size());
  }
}

int Run(const TokenizeOptions& options) {
  PullMissingModel(options.common.model, options.common.offline, options.common.quiet);
  const ModelTokenizer tokenizer = ModelTokenizer::Open(options.common.model);
  for (const std::string& note : tokenizer.Notes()) Tell(note);
  const std::string &chat = options.conversation,
                    text = options.file.empty() ? options.text : ReadFileText(options.file);
  try {
    Print(options, tokenizer, chat.empty() ? text : tokenizer.RenderChat(ReadFileText(chat), chat));
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    if (options.file.empty()) throw;
    throw Error(fmt::format("{}: {}", options.file, error.what()));
  }
  return 0;
}

}  // namespace

Command AddTokenize(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  options->common.AddModelTo(app);
  auto* text = app.add_option("text", options->text, "text, or token ids with --decode");
  auto* file = app.add_option("--text", options->file, "read the text from this file")->excludes(text);
  auto* ids = app.add_flag("--ids", options->ids_only, "print ids only, on one line");
  app.add_flag("--null", options->many,
               "the file holds many texts, each ended by a zero byte; print one line of ids per text")
      ->needs(file)
      ->needs(ids);
  auto* chat =
      app.add_option("--chat", options->conversation,
                     "read a conversation from this JSON file, a list of {\"role\": ..., \"content\": ...} or an "
                     "object with \"messages\" and other variables of the model's chat template")
          ->excludes(text)
          ->excludes(file);
  app.add_flag("--rendered", options->rendered, "print the text that the template makes of it, and nothing else")
      ->needs(chat);
  app.add_flag("--decode", options->decode, "convert ids to text")->excludes(chat);
  app.add_flag("--bos", options->bos, "begin with the tokens that the tokenizer's configuration puts before a text")
      ->excludes(chat);
  app.footer(
      "Examples:\n  shiftrt tokenize --model demo \"It is a truth\"\n"
      "  shiftrt tokenize --model demo --decode \"17 301 9\"\n  shiftrt tokenize --model demo --ids --text F\n"
      "  shiftrt tokenize --model SmolLM2-135M-Instruct --chat conversation.json");
  return [=] {
    if (text->count() + file->count() + chat->count() == 0)
      FailUsage("tokenize: give a text, a file with --text, or a conversation with --chat");
    return Run(*options);
  };
}

}  // namespace shiftrt
