// SPDX-License-Identifier: Apache-2.0
// Fuzz targets share these helpers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "runtime/check.h"
#include "runtime/checked_lines.h"

namespace shiftrt {

// Ignores an Error, which a reader may throw for every bad input. Another exception ends the target.
template <typename Call>
void Try(const Call& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

// The first eight lines of `bytes`. Further lines of a journal cost time and reach no other code.
inline std::string_view FirstLines(std::string_view bytes) {
  size_t end = 0;
  for (int line = 0; line < 8 && end < bytes.size(); ++line)
    end = std::min(bytes.find('\n', end), bytes.size() - 1) + 1;
  return bytes.substr(0, end);
}

// Writes each line of `bytes` to a new file as the text of a line whose checksum is right.
inline void WriteCheckedLines(const std::filesystem::path& file, std::string_view bytes) {
  std::filesystem::remove(file);
  LineAppender lines(file);
  for (size_t begin = 0, end = 0; begin < bytes.size(); begin = end + 1) {
    end = std::min(bytes.find('\n', begin), bytes.size());
    lines.Add(bytes.substr(begin, end - begin));
  }
}

}  // namespace shiftrt
