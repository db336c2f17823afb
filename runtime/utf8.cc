// SPDX-License-Identifier: Apache-2.0
#include "runtime/utf8.h"

#include <cstdint>

namespace shiftrt {

Utf8Span FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The range of the second byte excludes overlong forms, surrogates and code points beyond U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const auto [length, valid] = FirstCharacter(text);
    if (!valid) return false;
    text.remove_prefix(length);
  }
  return true;
}

char32_t CodePoint(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  const auto [length, valid] = FirstCharacter(character);
  if (!valid || length != character.size()) return 0xFFFD;
  if (length == 1) return byte(0);
  char32_t c = byte(0) & (0xFF >> (character.size() + 1));
  for (size_t i = 1; i < character.size(); ++i) c = c << 6 | (byte(i) & 0x3F);
  return c;
}

}  // namespace shiftrt
