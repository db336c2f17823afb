// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizers/utf8.h"

namespace shiftrt::jinja {

namespace {

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char UpperAscii(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char LowerAscii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// str.isprintable of one character.
bool IsPrintable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
  }
}

// The ends of lines that str.splitlines knows.
bool EndsLine(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

bool IsSpace(char32_t c) { return (c >= 0x1C && c <= 0x1F) || IsWhiteSpace(c); }

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t at = 0; at < text.size();) {
    const size_t length = FirstCharacter(text.substr(at)).length;
    characters.push_back(text.substr(at, length));
    at += length;
  }
  return characters;
}

int64_t Length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string_view CharacterAt(std::string_view text, int64_t place) {
  for (; place > 0; --place) text.remove_prefix(FirstCharacter(text).length);
  return text.substr(0, FirstCharacter(text).length);
}

Finder::Finder(std::string_view part) : part_(part), border_(part.size()) {
  for (size_t i = 1; i < part.size(); ++i) border_[i] = static_cast<uint32_t>(Extend(border_[i - 1], part[i]));
}

size_t Finder::Extend(size_t matched, char byte) const {
  while (matched > 0 && (matched == part_.size() || part_[matched] != byte)) matched = border_[matched - 1];
  return part_[matched] == byte ? matched + 1 : 0;
}

size_t Finder::First(std::string_view text, size_t from) const {
  if (part_.empty()) return from <= text.size() ? from : text.npos;
  size_t matched = 0;
  for (size_t i = from; i < text.size(); ++i) {
    if (matched == 0) {  // the C library finds a byte faster
      i = text.find(part_[0], i);
      if (i == text.npos) break;
    }
    matched = Extend(matched, text[i]);
    if (matched == part_.size()) return i + 1 - matched;
  }
  return text.npos;
}

size_t Finder::Last(std::string_view text) const {
  if (part_.empty()) return text.size();
  size_t matched = 0, last = text.npos;
  for (size_t i = 0; i < text.size(); ++i) {
    matched = Extend(matched, text[i]);
    if (matched == part_.size()) last = i + 1 - matched;
  }
  return last;
}

std::string_view Strip(std::string_view text, Side side, std::optional<std::string_view> of) {
  const auto goes = [&](std::string_view character) {
    return of ? of->find(character) != of->npos : IsSpace(CodePoint(character));
  };
  while (side != Side::kRight && !text.empty()) {
    const size_t length = FirstCharacter(text).length;
    if (!goes(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (side != Side::kLeft && !text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && (text[at] & 0xC0) == 0x80) --at;
    if (!goes(text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

void SplitAtSpace(std::string_view text, int64_t most, const PartSink& sink) {
  int64_t splits = 0;
  for (text = Strip(text, Side::kLeft); !text.empty(); text = Strip(text, Side::kLeft)) {
    if (most >= 0 && splits == most) return sink(text);
    size_t end = 0;
    while (end < text.size()) {
      const size_t length = FirstCharacter(text.substr(end)).length;
      if (IsSpace(CodePoint(text.substr(end, length)))) break;
      end += length;
    }
    sink(text.substr(0, end));
    ++splits;
    text.remove_prefix(end);
  }
}

void Split(std::string_view text, std::string_view separator, int64_t most, const PartSink& sink) {
  const Finder finder(separator);
  for (int64_t splits = 0; most < 0 || splits < most; ++splits) {
    const size_t end = finder.First(text);
    if (end == text.npos) break;
    sink(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  sink(text);
}

void SplitLines(std::string_view text, const PartSink& sink) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = FirstCharacter(text.substr(at)).length;
    const bool ends = EndsLine(CodePoint(text.substr(at, length)));
    if (ends) sink(text.substr(begin, at - begin));
    at += ends && text.substr(at).starts_with("\r\n") ? 2 : length;
    if (ends) begin = at;
  }
  if (begin < text.size()) sink(text.substr(begin));
}

bool HasSimpleCase(std::string_view text) {
  while (!text.empty()) {
    const std::string_view character = text.substr(0, FirstCharacter(text).length);
    text.remove_prefix(character.size());
    if (character.size() == 1) continue;
    const auto c = static_cast<utf8proc_int32_t>(CodePoint(character));
    const utf8proc_category_t category = utf8proc_category(c);
    const bool letter = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
                        category == UTF8PROC_CATEGORY_LT || category == UTF8PROC_CATEGORY_LM;
    if (letter || utf8proc_toupper(c) != c || utf8proc_tolower(c) != c) return false;
  }
  return true;
}

std::string Upper(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(), UpperAscii);
  return upper;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), LowerAscii);
  return lower;
}

std::string Capitalize(std::string_view text) {
  std::string result = Lower(text);
  if (!result.empty()) result[0] = UpperAscii(result[0]);
  return result;
}

std::string Title(std::string_view text) {
  std::string result = Lower(text);
  for (size_t i = 0; i < result.size(); ++i)
    if (i == 0 || !IsAsciiLetter(result[i - 1])) result[i] = UpperAscii(result[i]);
  return result;
}

std::string Quote(std::string_view text) {
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubled ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const std::string_view character = text.substr(0, FirstCharacter(text).length);
    text.remove_prefix(character.size());
    const char32_t c = CodePoint(character);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += character;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c)) {
      out += character;
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

std::string Format(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto format = [&](std::chars_format how) {
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value, how).ptr);
  };
  // Python writes an exponent below 1e-4 and from 1e16.
  const double size = std::fabs(value);
  if (value != 0 && (size < 1e-4 || size >= 1e16)) return format(std::chars_format::scientific);
  std::string text = format(std::chars_format::fixed);
  if (text.find('.') == text.npos) text += ".0";
  return text;
}

}  // namespace shiftrt::jinja
