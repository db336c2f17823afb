// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/utf8.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "runtime/check.h"

namespace shiftrt {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int kAlphabetEnd = 0x144;  // 256 bytes, 68 of them moved past U+00FF

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, kAlphabetEnd> bytes;
};

std::string EncodeTwoBytes(int c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
}

Alphabet MakeAlphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  int moved = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int c = printable ? byte : moved++;
    alphabet.characters[byte] = EncodeTwoBytes(c);
    alphabet.bytes[c] = byte;
  }
  return alphabet;
}

const Alphabet& ByteAlphabet() {
  static const Alphabet alphabet = MakeAlphabet();
  return alphabet;
}

}  // namespace

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const auto [length, valid] = FirstCharacter(bytes);
    text += valid ? bytes.substr(0, length) : kReplacement;
    bytes.remove_prefix(length);
  }
  return text;
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

namespace {

std::string Replaced(std::string_view text, std::string_view from, std::string_view to, size_t most) {
  std::string out;
  out.reserve(text.size());
  for (size_t at; (at = text.find(from)) != std::string_view::npos; text.remove_prefix(at + from.size())) {
    out += text.substr(0, at);
    out += to;
    Check(out.size() <= most, "replacing \"{}\" makes more than {} bytes of a text", from, most);
  }
  out += text;
  return out;
}

}  // namespace

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  return Replaced(text, from, to, std::string::npos);
}

size_t TrailingSpace(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t at = begin - 1;
    while (at > 0 && (text[at] & 0xC0) == 0x80) --at;
    if (!IsWhiteSpace(CodePoint(text.substr(at, begin - at)))) break;
    begin = at;
  }
  return begin;
}

size_t LeadingSpace(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t length = FirstCharacter(text.substr(end)).length;
    if (!IsWhiteSpace(CodePoint(text.substr(end, length)))) break;
    end += length;
  }
  return end;
}

std::string ReplaceWithin(size_t size, std::string_view text, std::string_view from, std::string_view to) {
  return Replaced(text, from, to, MostReplaced(size));
}

std::string BytesToAlphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 3 / 2);
  for (const char c : bytes) out += ByteAlphabet().characters[static_cast<uint8_t>(c)];
  return out;
}

bool AppendAlphabetBytes(std::string_view piece, std::string& bytes) {
  const size_t before = bytes.size();
  while (!piece.empty()) {
    const size_t length = FirstCharacter(piece).length;
    const char32_t c = CodePoint(piece.substr(0, length));
    const int byte = c < kAlphabetEnd ? ByteAlphabet().bytes[c] : -1;
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(byte);
    piece.remove_prefix(length);
  }
  return true;
}

int ParseBytePiece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  uint8_t byte = 0;  // unsigned, so that a sign is not accepted
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
  return error == std::errc() && end == piece.data() + 5 ? byte : -1;
}

std::string BytePiece(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

}  // namespace shiftrt
