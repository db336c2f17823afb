// SPDX-License-Identifier: Apache-2.0
#include "eval/files.h"

#include <fnmatch.h>

#include <algorithm>

#include "hub/settings.h"
#include "runtime/check.h"
#include "runtime/parquet.h"
#include "runtime/text.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// The entries of a directory in the order of their names; none where there is no such directory.
std::vector<fs::path> Entries(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory, none)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// What is called `pattern` in `place`. Where a pattern asks for .jsonl, .parquet is as good, but comes second.
std::vector<fs::path> Matches(const fs::path& place, const std::string& pattern) {
  const fs::path whole = place / pattern;
  std::vector<fs::path> matches;
  for (const fs::path& entry : Entries(whole.parent_path()))
    if (::fnmatch(whole.filename().c_str(), WithoutCompression(entry.filename()).c_str(), FNM_PERIOD) == 0)
      matches.push_back(entry);
  if (matches.empty() && whole.extension() == ".jsonl")
    return Matches(place, fs::path(pattern).replace_extension(".parquet").string());
  return matches;
}

std::vector<fs::path> Snapshots(const Task& task) {
  return Entries(HuggingFaceCache() / ("datasets--" + ReplaceAll(task.repository, "/", "--")) / "snapshots");
}

// A Parquet file in the snapshots of the task's repository, which has a place and a name of its own there; "" where
// there is none.
fs::path Parquet(const Task& task) {
  std::error_code none;
  for (const fs::path& place : Snapshots(task))
    for (const auto& entry : fs::recursive_directory_iterator(place, none))
      if (IsParquet(entry.path())) return entry.path();
  return "";
}

[[noreturn]] void FailNotFound(const Task& task, const std::vector<std::string>& patterns,
                               const std::vector<fs::path>& places) {
  const fs::path parquet = Parquet(task);
  const std::string advice =
      parquet.empty() ? ""
                      : fmt::format("; the Hugging Face cache has {}: if it is the split, name it", parquet.string());
  Fail("{}: no file {}; looked in: {}; name another directory, or the file as {}=FILE{}", task.name,
       fmt::join(patterns, ", "),
       places.empty() ? "nowhere"
                      : fmt::format("{}", fmt::join(std::vector<std::string>(places.begin(), places.end()), ", ")),
       task.name, advice);
}

}  // namespace

std::vector<fs::path> FindTaskFiles(const Task& task, const std::vector<std::string>& patterns,
                                    const std::vector<std::string>& data) {
  std::vector<fs::path> places;
  for (const std::string& place : data) {
    if (place.find('=') == std::string::npos) {
      if (!fs::is_directory(place)) FailUsage(Field("data"), "{} is neither a directory nor TASK=FILE", place);
      places.emplace_back(place);
    } else if (place.starts_with(task.name + "=") && &patterns == &task.files) {
      return {place.substr(task.name.size() + 1)};
    }
  }
  for (fs::path& snapshot : Snapshots(task)) places.push_back(std::move(snapshot));
  for (const std::string& pattern : patterns) {
    for (const fs::path& place : places) {
      std::vector<fs::path> matches = Matches(place, pattern);
      Check(matches.size() <= 1 || task.by_subject, "{}: several files are called {}: {}; say which as {}=FILE",
            task.name, pattern, fmt::join(std::vector<std::string>(matches.begin(), matches.end()), ", "), task.name);
      if (!matches.empty()) return matches;
    }
  }
  FailNotFound(task, patterns, places);
}

}  // namespace shiftrt
