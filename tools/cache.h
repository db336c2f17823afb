// SPDX-License-Identifier: Apache-2.0
// Where commands keep what an interrupted one has done.
#pragma once

#include <filesystem>
#include <string>

namespace shiftrt {

// `name` in shiftrt's cache directory: $XDG_CACHE_HOME/shiftrt or ~/.cache/shiftrt. Empty where there is neither.
std::filesystem::path CachePath(const std::string& name);
// The same for the name KIND-HASH, with the hash of `what`, which stands for all that decides what the file holds.
std::filesystem::path HashedCachePath(const std::string& kind, const std::string& what);

}  // namespace shiftrt
