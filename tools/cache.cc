// SPDX-License-Identifier: Apache-2.0
#include "tools/cache.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "api/impl.h"
#include "models/result_key.h"
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

std::filesystem::path CacheDirectory() {
  std::filesystem::path directory = CachePath("");
  if (directory.empty()) return directory;
  try {
    std::filesystem::create_directories(directory);
    const AtomicFile trial(directory / "trial");
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {  // such as a home that is read-only: the command can do without
    fmt::print(stderr,
               "shiftrt: nothing is kept for the case of an interruption; XDG_CACHE_HOME names another cache: {}\n",
               error.what());
    return {};
  }
  return directory;
}

std::filesystem::path CacheFile(const std::string& kind, const WorkKey& key, const std::string& extension) {
  const std::filesystem::path directory = CacheDirectory();
  return directory.empty() ? directory : directory / fmt::format("{}-{}{}", kind, key.Hash(), extension);
}

WorkKey CommandKey(std::string_view what, const LanguageModel& model, const Resources& resources) {
  return ResultKey(what, MakeContext(resources), model.impl().model, model.impl().model.plan);
}

}  // namespace shiftrt
