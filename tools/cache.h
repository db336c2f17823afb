// SPDX-License-Identifier: Apache-2.0
// Where commands keep what an interrupted one has done.
#pragma once

#include <filesystem>
#include <string>

namespace shiftrt {

// `name` in shiftrt's cache directory: $XDG_CACHE_HOME/shiftrt or ~/.cache/shiftrt. Empty where there is neither.
std::filesystem::path CachePath(const std::string& name);
// A file of the cache in which a command keeps what it has done: KIND-HASH and the extension, with the hash of `what`,
// which stands for all that decides what the file holds. Empty where there is no cache, or none that can be written;
// the latter is told on standard error.
std::filesystem::path CacheFile(const std::string& kind, const std::string& what, const std::string& extension);

}  // namespace shiftrt
