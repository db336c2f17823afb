// SPDX-License-Identifier: Apache-2.0
#include "tools/cache.h"

#include <cstdlib>

#include "runtime/files.h"

namespace shiftrt {

std::filesystem::path CachePath(const std::string& name) {
  namespace fs = std::filesystem;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache == nullptr && home == nullptr) return {};
  return (cache != nullptr ? fs::path(cache) : fs::path(home) / ".cache") / "shiftrt" / name;
}

std::filesystem::path HashedCachePath(const std::string& kind, const std::string& what) {
  return CachePath(kind + "-" + HashHex(what));
}

}  // namespace shiftrt
