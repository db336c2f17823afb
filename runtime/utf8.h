// SPDX-License-Identifier: Apache-2.0
// The characters of UTF-8 text.
#pragma once

#include <cstddef>
#include <string_view>

namespace shiftrt {

struct Utf8Span {
  size_t length;  // bytes of the character; if invalid, of the longest prefix of a valid character
  bool valid;
};

// The first character of `text`, which must not be empty.
Utf8Span FirstCharacter(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Code point of a character; U+FFFD, the replacement character, for bytes that are not one valid character. The text
// must not be empty.
char32_t CodePoint(std::string_view character);

}  // namespace shiftrt
