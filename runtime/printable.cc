// SPDX-License-Identifier: Apache-2.0
#include "runtime/printable.h"

#include <fmt/format.h>

#include "runtime/utf8.h"

namespace shiftrt {

namespace {

// Control characters (C0, DEL, C1), and those that format text without being seen: marks of direction, line and
// paragraph separators, and the byte order mark.
bool IsHidden(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

std::string Escaped(std::string_view text, size_t limit, bool keeps_lines) {
  std::string out;
  size_t at = 0;
  while (at < text.size() && at < limit) {
    const auto [length, valid] = FirstCharacter(text.substr(at, 4));
    const std::string_view character = text.substr(at, length);
    at += length;
    if (!valid) {
      for (const char byte : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      continue;
    }
    const char32_t c = CodePoint(character);
    if (c == '\n' && keeps_lines) {
      out += '\n';
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsHidden(c)) {
      out += c < 0x100 ? fmt::format("\\x{:02x}", static_cast<unsigned>(c))
                       : fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += character;
    }
  }
  if (at < text.size()) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

}  // namespace

std::string Printable(std::string_view text, size_t limit) { return Escaped(text, limit, false); }

std::string PrintableLines(std::string_view text, size_t limit) { return Escaped(text, limit, true); }

}  // namespace shiftrt
