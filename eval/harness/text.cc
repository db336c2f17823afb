// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

void Append(char32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), length);
}

}  // namespace

bool IsPythonSpace(char32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view StripLeft(std::string_view text) {
  while (!text.empty()) {
    const std::string_view first = text.substr(0, FirstCharacter(text).length);
    if (!IsPythonSpace(CodePoint(first))) break;
    text.remove_prefix(first.size());
  }
  return text;
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && IsContinuation(text[begin])) --begin;
    if (!IsPythonSpace(CodePoint(text.substr(begin)))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::string_view Strip(std::string_view text) { return StripLeft(StripRight(text)); }

std::string Capitalize(std::string_view text) {
  std::string out;
  for (size_t at = 0, length; at < text.size(); at += length) {
    length = FirstCharacter(text.substr(at)).length;
    const auto c = static_cast<utf8proc_int32_t>(CodePoint(text.substr(at, length)));
    Append(at == 0 ? utf8proc_totitle(c) : utf8proc_tolower(c), out);
  }
  return out;
}

int64_t CodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !IsContinuation(byte); });
}

int64_t SplitWords(std::string_view text) {
  int64_t words = 1;
  bool in_space = false;
  for (size_t at = 0, length; at < text.size(); at += length) {
    length = FirstCharacter(text.substr(at)).length;
    const bool space = IsPythonSpace(CodePoint(text.substr(at, length)));
    if (space && !in_space) ++words;
    in_space = space;
  }
  return words;
}

}  // namespace shiftrt
