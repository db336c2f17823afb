// SPDX-License-Identifier: Apache-2.0
// Python's string functions, where the reference's task texts depend on them. All text is valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shiftrt {

// str.isspace of one character: the Unicode property White_Space and U+001C to U+001F.
bool IsPythonSpace(char32_t c);
std::string_view StripLeft(std::string_view text);   // str.lstrip()
std::string_view StripRight(std::string_view text);  // str.rstrip()
std::string_view Strip(std::string_view text);       // str.strip()

// str.capitalize(): the first letter in title case, all others in lower case. One-to-one case mappings only: a leading
// letter whose title case takes two letters (U+00DF) stays as it is.
std::string Capitalize(std::string_view text);

int64_t CodePoints(std::string_view text);  // len(str)
// len(re.split(r"\s+", text)): words, counting an empty one before leading and after trailing space.
int64_t SplitWords(std::string_view text);

}  // namespace shiftrt
