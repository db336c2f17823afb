// SPDX-License-Identifier: Apache-2.0
// Files to which a program appends finished work line by line, so that it can continue after a kill. Each line carries
// a checksum of its text: "CHECKSUM TEXT". A changed line is therefore found instead of believed.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/descriptor.h"

namespace shiftrt {

struct CheckedLines {
  std::vector<std::string> texts;  // the texts of the lines whose checksum is right
  std::vector<std::string> bad;    // "FILE:LINE: its checksum is wrong", one for each other line
};
// A last line without an end was being written when the program was killed. It is left out and not called bad. Throws
// Error if the file is not a regular one or cannot be read.
CheckedLines ReadCheckedLines(const std::filesystem::path& file);

// Reads lines of JSON and hands over the values. Returns the bad lines; those for which `take` throws Error or an
// exception of JSON are among them as "FILE: a line is WRONG".
std::vector<std::string> ReadJsonLines(const std::filesystem::path& file, std::string_view wrong,
                                       const std::function<void(const nlohmann::json& value)>& take);

// The line of a text, with its checksum and its end.
std::string CheckedLine(std::string_view text);

class LineAppender {
 public:
  // Opens a regular file for appending and creates it if it is missing. If its last line has no end, a line end comes
  // first. Throws Error; a pipe is refused at once instead of being waited for.
  explicit LineAppender(const std::filesystem::path& file);

  // `text` is one line. Throws Error if it cannot be written.
  void Add(std::string_view text);

 private:
  void Write(std::string_view bytes);

  std::filesystem::path file_;
  Descriptor fd_;
};

}  // namespace shiftrt
