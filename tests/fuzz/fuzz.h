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
