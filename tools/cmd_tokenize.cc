// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <sstream>

#include "runtime/check.h"
#include "runtime/text.h"
#include "tools/options.h"
#include "tools/pulling.h"

namespace shiftrt {

namespace {

struct TokenizeOptions {
  CommonOptions common;
  std::string text, file;
  bool ids_only = false, decode = false, bos = false, many = false;
};

void PrintIds(const Tokenizer& tokenizer, const std::string& text, bool bos) {
  fmt::print("{}\n", fmt::join(bos ? tokenizer.EncodeWithBos(text) : tokenizer.Encode(text), " "));
}

int Run(const TokenizeOptions& options) {
  PullMissingModel(options.common.model, options.common.offline, options.common.quiet);
  const auto tokenizer = OpenTokenizer(options.common.model);
  const std::string text = options.file.empty() ? options.text : ReadText(options.file);
  if (options.decode) {
    fmt::print("{}\n", tokenizer->Decode(ParseTokenIds(text)));
    return 0;
  }
  if (options.many) {
    std::istringstream texts(text);
    for (std::string one; std::getline(texts, one, '\0');) PrintIds(*tokenizer, one, options.bos);
    return 0;
  }
  if (options.ids_only) {
    PrintIds(*tokenizer, text, options.bos);
    return 0;
  }
  const std::vector<int32_t> ids = options.bos ? tokenizer->EncodeWithBos(text) : tokenizer->Encode(text);
  for (int32_t id : ids) fmt::print("{:>8}  {}\n", id, tokenizer->Piece(id));
  fmt::print("{} tokens\n", ids.size());
  return 0;
}

}  // namespace

Command AddTokenize(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  options->common.AddModelTo(app);
  auto* text = app.add_option("text", options->text, "text, or token ids with --decode");
  auto* file = app.add_option("--file", options->file, "read the text from this file")->excludes(text);
  auto* ids = app.add_flag("--ids", options->ids_only, "print ids only, on one line");
  app.add_flag("--null", options->many,
               "the file holds many texts, each ended by a zero byte; print one line of ids per text")
      ->needs(file)
      ->needs(ids);
  app.add_flag("--decode", options->decode, "convert ids to text");
  app.add_flag("--bos", options->bos, "begin with BOS if the tokenizer's configuration asks for it");
  app.footer(
      "Examples:\n  shiftrt tokenize --model demo \"It is a truth\"\n"
      "  shiftrt tokenize --model demo --decode \"17 301 9\"\n  shiftrt tokenize --model demo --ids --file F");
  return [=] {
    if (text->count() + file->count() == 0) FailUsage("tokenize: give a text, or a file with --file");
    return Run(*options);
  };
}

}  // namespace shiftrt
