#include <CLI/CLI.hpp>
#include <charconv>

#include "runtime/check.h"
#include "runtime/files.h"
#include "tools/options.h"

namespace shiftrt {

namespace {

struct Options {
  CommonOptions common;
  std::string text, file;
  bool ids_only = false, decode = false, bos = false;
};

std::vector<int32_t> ParseIds(const std::string& text) {
  std::vector<int32_t> ids;
  const char *at = text.data(), *end = at + text.size();
  while (true) {
    while (at != end && (*at == ' ' || *at == '\n' || *at == ',' || *at == '\t')) ++at;
    if (at == end) return ids;
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc())
      FailUsage("\"{}\" is not a list of token ids", std::string_view(at, std::min<size_t>(end - at, 20)));
    ids.push_back(id);
    at = stop;
  }
}

int Run(const Options& options) {
  const auto tokenizer = LoadTokenizer(ResolveModel(options.common.model));
  const std::string text = options.file.empty() ? options.text : ReadFile(options.file);
  if (options.decode) {
    fmt::print("{}\n", tokenizer->Decode(ParseIds(text)));
    return 0;
  }
  const std::vector<int32_t> ids = options.bos ? tokenizer->EncodeWithBos(text) : tokenizer->Encode(text);
  if (options.ids_only) {
    fmt::print("{}\n", fmt::join(ids, " "));
    return 0;
  }
  for (int32_t id : ids) fmt::print("{:>8}  {}\n", id, tokenizer->Piece(id));
  fmt::print("{} tokens\n", ids.size());
  return 0;
}

}  // namespace

Command AddTokenize(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->common.AddTo(app, /*with_json=*/false);
  auto* text = app.add_option("text", options->text, "the text, or ids with --decode");
  app.add_option("--file", options->file, "take the text from a file")->excludes(text);
  app.add_flag("--ids", options->ids_only, "ids only, on one line");
  app.add_flag("--decode", options->decode, "the other way: ids to text");
  app.add_flag("--bos", options->bos, "put BOS in front where the tokenizer's config asks for it");
  app.footer(
      "Examples:\n  shiftrt tokenize --model demo \"It is a truth\"\n"
      "  shiftrt tokenize --model demo --decode \"17 301 9\"\n  shiftrt tokenize --model demo --ids --file F");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
