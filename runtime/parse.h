// SPDX-License-Identifier: Apache-2.0
// Numbers, lists and words in texts.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shiftrt {

// The whole of `text` as a number; false, with `value` unspecified, for anything else or out of range.
template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// A suffix and what it multiplies by, such as k for 1000.
using UnitSuffix = std::pair<std::string_view, double>;

// Parses "6.3B" with the unit B = 1e9: a number of at least 1 and below 1e18. The units are tried in order; none
// means 1.
inline bool ParseWithUnit(std::string_view text, std::initializer_list<UnitSuffix> units, int64_t* value) {
  double number = 0, scale = 1;
  for (const auto& [suffix, factor] : units) {
    if (!text.ends_with(suffix)) continue;
    text.remove_suffix(suffix.size());
    scale = factor;
    break;
  }
  if (!ParseNumber(text, &number) || !(number * scale >= 1 && number * scale < 1e18)) return false;
  *value = static_cast<int64_t>(number * scale);
  return true;
}

// Parses a number of parameters: "500k", "6.3B" or without a unit.
inline bool ParseParameters(std::string_view text, int64_t* value) {
  return ParseWithUnit(text, {{"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}}, value);
}

// `text` with small letters for the capital ones of ASCII.
inline std::string AsciiLower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// Returns the parts between the commas of `text`, empty ones included. There is one more part than there are commas.
inline std::vector<std::string_view> SplitCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace shiftrt
