// SPDX-License-Identifier: Apache-2.0
// tiktoken's file format: one line "base64 rank" per token, without merges. Meta's Llama 3 uses it.
#include <algorithm>
#include <array>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "tokenizers/bpe.h"
#include "tokenizers/load.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

constexpr std::string_view kBegin = "<|begin_of_text|>", kEnd = "<|end_of_text|>";
constexpr int kSpecialTokens = 256;

int Base64Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size() - padding; ++i) {
    const int digit = Base64Digit(text[i]);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 0) bytes += static_cast<char>(bits >> (6 - 2 * (i % 4)));
  }
  return bytes;
}

// The names of Llama 3's special tokens, whose ids follow the ranks in this order.
std::string SpecialName(int index) {
  constexpr std::array<std::string_view, 10> kNamed = {kBegin,
                                                       kEnd,
                                                       "<|reserved_special_token_0|>",
                                                       "<|reserved_special_token_1|>",
                                                       "<|reserved_special_token_2|>",
                                                       "<|reserved_special_token_3|>",
                                                       "<|start_header_id|>",
                                                       "<|end_header_id|>",
                                                       "<|reserved_special_token_4|>",
                                                       "<|eot_id|>"};
  if (index < static_cast<int>(kNamed.size())) return std::string(kNamed[index]);
  return fmt::format("<|reserved_special_token_{}|>", index - 5);
}

void ReadRanks(std::string_view rest, Vocabulary& vocabulary, const std::string& where) {
  int32_t count = 0;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    const auto bytes = DecodeBase64(line.substr(0, space));
    Check(bytes.has_value(), "{}: line {} does not begin with base64", where, number);
    int64_t rank = -1;
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    Check(ParseNumber(digits, &rank), "{}: line {} does not end with a rank", where, number);
    vocabulary.Add(BytesToAlphabet(*bytes), rank, where);
    ++count;
  }
  Check(count == vocabulary.size(), "{}: the ranks of {} tokens go up to {}: some are missing or duplicate", where,
        count, vocabulary.size() - 1);
}

}  // namespace

std::unique_ptr<Tokenizer> LoadTiktoken(const TokenizerSettings& settings, const std::string& file) {
  BpeParts parts;
  parts.where = (settings.directory / "tokenizer.model").string();
  ReadRanks(file, parts.vocabulary, parts.where);
  parts.added = settings.added;
  if (parts.added.empty()) {
    for (int i = 0; i < kSpecialTokens; ++i)
      parts.added.push_back({.content = SpecialName(i), .id = parts.vocabulary.size() + i, .special = true});
  }
  parts.pre_tokenizer.AddSplit(SplitPattern(kLlama3Pattern, parts.where), true, true);
  parts.decoder.byte_level = true;
  parts.ignore_merges = true;
  const auto named = [&](std::string_view name, const std::optional<std::string>& chosen) {
    return chosen ? *chosen : std::string(name);
  };
  const std::string bos = named(kBegin, settings.bos), eos = named(kEnd, settings.eos);
  return std::make_unique<BpeTokenizer>(std::move(parts), settings, bos, eos, true);
}

}  // namespace shiftrt
