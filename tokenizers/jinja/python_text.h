// SPDX-License-Identifier: Apache-2.0
// Operations of Python's str on valid UTF-8. Lengths and positions are in characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt::jinja {

// str.isspace of one character.
bool IsSpace(char32_t c);

// The characters of a text, as views into it.
std::vector<std::string_view> Characters(std::string_view text);
int64_t Length(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
// str.strip, lstrip, rstrip: of white space, or of any of the characters `of`.
std::string_view Strip(std::string_view text, Side side, std::optional<std::string_view> of = {});

// str.split: by white space where there is no separator; at most `most` splits, all where it is negative. The separator
// is not empty.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t most);
std::vector<std::string_view> Split(std::string_view text, std::string_view separator, int64_t most);
// str.splitlines.
std::vector<std::string_view> SplitLines(std::string_view text);

// Case is mapped for ASCII text only. False if a character that is not ASCII has an upper and a lower case.
bool HasSimpleCase(std::string_view text);
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string Title(std::string_view text);  // str.title; words are runs of letters

// repr() of a str and of a float.
std::string Quote(std::string_view text);
std::string Format(double value);

}  // namespace shiftrt::jinja
