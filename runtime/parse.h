// SPDX-License-Identifier: Apache-2.0
// Numbers and lists in option texts.
#pragma once

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

namespace shiftrt {

// The whole of `text` as a number; false, with `value` unspecified, for anything else or out of range.
template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
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
