// SPDX-License-Identifier: Apache-2.0
#include "tools/color.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace shiftrt {

bool ShowsColors(int descriptor) {
  const auto text = [](const char* value) { return std::string_view(value == nullptr ? "" : value); };
  return ::isatty(descriptor) != 0 && text(std::getenv("NO_COLOR")).empty() && text(std::getenv("TERM")) != "dumb";
}

std::string Painted(std::string_view text, Paint paint) {
  const char* const code = paint == Paint::kBold ? "1" : paint == Paint::kOption ? "36" : "1;31";
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

}  // namespace shiftrt
