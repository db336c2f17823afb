// SPDX-License-Identifier: Apache-2.0
// Reads lines of standard input and reacts to a signal while it waits for one.
#pragma once

#include <optional>
#include <string>

namespace shiftrt {

class LineReader {
 public:
  // The next line without its end; no value at the end of the input. Throws Interrupted after a signal.
  std::optional<std::string> Next();

 private:
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace shiftrt
