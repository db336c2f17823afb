// SPDX-License-Identifier: Apache-2.0
#include "runtime/work_key.h"

#include <fmt/format.h>

#include <system_error>

#include "include/shiftrt/version.h"
#include "runtime/files.h"

namespace shiftrt {

WorkKey::WorkKey(std::string_view what) {
  AddWords("what", what);
  AddWords("version", fmt::format("{}.{}.{}", SHIFTRT_VERSION_MAJOR, SHIFTRT_VERSION_MINOR, SHIFTRT_VERSION_PATCH));
}

WorkKey& WorkKey::AddFile(std::string_view name, const std::filesystem::path& file) {
  std::error_code none;
  return AddWords(name, fmt::format("{} {} {}", file.string(), std::filesystem::file_size(file, none),
                                    std::filesystem::last_write_time(file, none).time_since_epoch().count()));
}

// The length tells where words with line ends are over.
WorkKey& WorkKey::AddWords(std::string_view name, std::string_view words) {
  text_ += fmt::format("{}={}:{}\n", name, words.size(), words);
  return *this;
}

std::string WorkKey::Hash() const { return HashHex(text_); }

}  // namespace shiftrt
