// SPDX-License-Identifier: Apache-2.0
// Where commands keep what an interrupted one has done.
#pragma once

#include <filesystem>
#include <string>

namespace shiftrt {

// `name` in shiftrt's cache directory: $XDG_CACHE_HOME/shiftrt or ~/.cache/shiftrt. Empty where there is neither.
std::filesystem::path CachePath(const std::string& name);

}  // namespace shiftrt
