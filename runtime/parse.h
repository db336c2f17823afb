// SPDX-License-Identifier: Apache-2.0
// Numbers in option texts.
#pragma once

#include <charconv>
#include <string_view>

namespace shiftrt {

// The whole of `text` as a number; false, with `value` unspecified, for anything else or out of range.
template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace shiftrt
