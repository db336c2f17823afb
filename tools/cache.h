// SPDX-License-Identifier: Apache-2.0
// Where commands keep what an interrupted one has done.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "include/shiftrt/model.h"
#include "include/shiftrt/resources.h"
#include "runtime/work_key.h"

namespace shiftrt {

// `name` in shiftrt's cache directory: $XDG_CACHE_HOME/shiftrt or ~/.cache/shiftrt. Empty where there is neither.
std::filesystem::path CachePath(const std::string& name);
// The same directory, which is made if it is missing. Empty where there is none, or none that can be written; the
// latter is told on standard error.
std::filesystem::path CacheDirectory();
// A file of that directory in which a command keeps what it has done: KIND-HASH and the extension. Empty where that is.
std::filesystem::path CacheFile(const std::string& kind, const WorkKey& key, const std::string& extension);

// A key of what a command does with a model on these resources (models/result_key.h).
WorkKey CommandKey(std::string_view what, const LanguageModel& model, const Resources& resources);

}  // namespace shiftrt
