// SPDX-License-Identifier: Apache-2.0
// Environment variables that turn parts of the GPU backend on or off (docs/environment.md).
#pragma once

#include <cstdlib>
#include <string_view>

namespace shiftrt::gpu {

// False if the variable is 0, true if it is anything else, and `fallback` if it is not set.
inline bool SwitchedOn(const char* variable, bool fallback) {
  const char* const setting = std::getenv(variable);
  return setting == nullptr ? fallback : std::string_view(setting) != "0";
}

}  // namespace shiftrt::gpu
