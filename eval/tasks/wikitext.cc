// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/text.h"
#include "eval/tasks/tasks.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

// Takes the spaces off the inside of every pair: "( a )" becomes "(a)". Leftmost pairs, not nested.
std::string Tighten(std::string_view text, char open, char close) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == open ? text.find(close, at + 1) : std::string_view::npos;
    if (end == std::string_view::npos) {
      out += text[at++];
      continue;
    }
    out += open;
    out += Strip(text.substr(at + 1, end - at - 1));
    out += close;
    at = end + 1;
  }
  return out;
}

// The reference's pattern /' [0-9]/ was meant for contractions but matches its slashes too, and writes [0-9] out.
std::string SlashedNumbers(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (rest.size() >= 5 && rest.starts_with("/' ") && rest[3] >= '0' && rest[3] <= '9' && rest[4] == '/') {
      out += "/'[0-9]/";
      at += 5;
    } else {
      out += text[at++];
    }
  }
  return out;
}

// Undoes WikiText's tokenisation, as the reference does.
std::string Detokenise(std::string_view page) {
  constexpr std::pair<const char*, const char*> kBefore[] = {
      {" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "}, {" ; ", "; "},
      {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "},
  };
  constexpr std::pair<const char*, const char*> kAfter[] = {
      {"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \u00B0 ", "\u00B0"},
      {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"},
  };
  constexpr std::pair<char, char> kPairs[] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
  std::string text = SlashedNumbers(ReplaceAll(page, "s '", "s'"));
  for (const auto& [from, to] : kBefore) text = ReplaceAll(text, from, to);
  for (const auto& [open, close] : kPairs) text = Tighten(text, open, close);
  for (const auto& [from, to] : kAfter) text = ReplaceAll(text, from, to);
  return text;
}

// Words and bytes are counted in the context, the page as it was.
Example ReadWikiText(const Row& row) {
  return {.contexts = {row.Text("page")}, .answers = {Detokenise(row.Text("page"))}};
}

}  // namespace

Task WikitextTask() {
  return {.name = "wikitext",
          .title = "WikiText-2",
          .kind = TaskKind::kPages,
          .metric = "word_perplexity",
          .metrics = {"word_perplexity", "byte_perplexity", "bits_per_byte"},
          .rows = 62,
          .repository = "EleutherAI/wikitext_document_level",
          .hub_rows = "wikitext-2-raw-v1/test",
          .files = {"wikitext*.jsonl", "wikitext/wiki.test.raw", "wikitext-2-raw/wiki.test.raw", "wiki.test.raw",
                    "text/wiki.test.raw"},
          .read = ReadWikiText,
          .sample = R"({"page": " = Sea = \n The sea ( blue ) @-@ calm . \n"})"};
}

}  // namespace shiftrt
