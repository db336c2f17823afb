// SPDX-License-Identifier: Apache-2.0
#include "tools/cache.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "runtime/files.h"

namespace shiftrt {

std::filesystem::path CachePath(const std::string& name) {
  namespace fs = std::filesystem;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "shiftrt" / name;
  if (home == nullptr || *home == '\0') return {};
  return fs::path(home) / ".cache" / "shiftrt" / name;
}

std::filesystem::path CacheFile(const std::string& kind, const std::string& what, const std::string& extension) {
  std::filesystem::path file = CachePath(kind + "-" + HashHex(what) + extension);
  if (file.empty()) return file;
  try {
    std::filesystem::create_directories(file.parent_path());
    const AtomicFile trial(file);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {  // such as a home that is read-only: the command can do without
    fmt::print(stderr,
               "shiftrt: nothing is kept for the case of an interruption; XDG_CACHE_HOME names another cache: {}\n",
               error.what());
    return {};
  }
  return file;
}

}  // namespace shiftrt
