// SPDX-License-Identifier: Apache-2.0
#include "eval/files.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "hub/settings.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/text.h"

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

// The files called `pattern` in `place`. If the pattern ends with .jsonl, .parquet files match too, after the others.
std::vector<fs::path> Matches(const fs::path& place, const std::string& pattern) {
  const size_t slash = pattern.find('/');
  const std::string head = pattern.substr(0, slash);
  std::vector<fs::path> matches;
  for (const fs::path& entry : Entries(place)) {
    const fs::path name = slash == pattern.npos ? WithoutCompression(entry.filename()) : entry.filename();
    if (::fnmatch(head.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
    if (slash == pattern.npos) {
      matches.push_back(entry);
    } else {
      const std::vector<fs::path> below = Matches(entry, pattern.substr(slash + 1));
      matches.insert(matches.end(), below.begin(), below.end());
    }
  }
  return matches;
}

// `pattern`, and where it asks for JSON lines, the same of Parquet.
std::vector<fs::path> RowFiles(const fs::path& place, const std::string& pattern) {
  std::vector<fs::path> matches = Matches(place, pattern);
  if (matches.empty() && pattern.ends_with(".jsonl"))
    matches = Matches(place, fs::path(pattern).replace_extension(".parquet").string());
  return matches;
}

const std::vector<std::string>& PatternsOf(const Task& task, TaskRows rows) {
  return rows == TaskRows::kItems ? task.files : task.shot_files;
}

const std::string& HubSplit(const Task& task, TaskRows rows) {
  return rows == TaskRows::kItems ? task.hub_rows : task.hub_shot_rows;
}

// Patterns of the files in a snapshot: of the hub's conversion, and as many repositories have their own Parquet.
std::vector<std::string> SnapshotPatterns(const Task& task, TaskRows rows) {
  std::vector<std::string> patterns;
  if (const std::string& split = HubSplit(task, rows); !split.empty()) {
    patterns = {split + "/*.parquet", split + "-*.parquet"};
    if (split.starts_with("*/")) patterns.push_back("data/" + split.substr(2) + "-*.parquet");
  }
  const std::vector<std::string>& others = PatternsOf(task, rows);
  patterns.insert(patterns.end(), others.begin(), others.end());
  return patterns;
}

// Throws Error if a file is there twice, plain and compressed or compressed in two ways: its rows would count twice.
void CheckAreDifferent(const Task& task, const std::vector<fs::path>& files) {
  std::map<fs::path, fs::path> by_text;
  for (const fs::path& file : files) {
    const auto [other, fresh] = by_text.emplace(WithoutCompression(file), file);
    Check(fresh, "{}: {} and {} differ only in their compression; keep one of them", task.name, other->second.string(),
          file.string());
  }
}

// The files of the first pattern that any place has.
std::vector<fs::path> FirstMatches(const Task& task, const std::vector<std::string>& patterns,
                                   const std::vector<fs::path>& places) {
  for (const std::string& pattern : patterns) {
    for (const fs::path& place : places) {
      std::vector<fs::path> matches = RowFiles(place, pattern);
      Check(matches.size() <= 1 || task.by_subject, "{}: several files are called {}: {}; say which as {}=FILE",
            task.name, pattern, fmt::join(std::vector<std::string>(matches.begin(), matches.end()), ", "), task.name);
      CheckAreDifferent(task, matches);
      if (!matches.empty()) return matches;
    }
  }
  return {};
}

struct Found {
  std::vector<fs::path> files;
  std::vector<fs::path> places;  // the places that were searched
};

Found Look(const Task& task, TaskRows rows, const std::vector<std::string>& data) {
  Found found;
  for (const std::string& place : data) {
    const size_t equals = place.find('=');
    const Task* const named = equals == std::string::npos ? nullptr : FindTask(place.substr(0, equals));
    if (named == &task && rows == TaskRows::kItems) {
      found.files = {place.substr(equals + 1)};
      return found;
    }
    if (named != nullptr) continue;
    if (!IsDirectory(place))
      FailUsage(Field("data"), "{} is neither a directory nor TASK=FILE with one of these tasks: {}", place,
                TaskNames());
    found.places.emplace_back(place);
  }
  found.files = FirstMatches(task, PatternsOf(task, rows), found.places);
  if (!found.files.empty()) return found;
  const std::vector<fs::path> snapshots = Snapshots(HubFilesOf(task, rows).repository, HuggingFaceCache());
  found.files = FirstMatches(task, SnapshotPatterns(task, rows), snapshots);
  found.places.insert(found.places.end(), snapshots.begin(), snapshots.end());
  return found;
}

}  // namespace

HubFiles HubFilesOf(const Task& task, TaskRows rows) {
  Repository repository = *ParseRepository(task.repository, RepositoryType::kDataset);
  repository.revision = kHubRevision;
  return {std::move(repository), HubSplit(task, rows) + "/*.parquet"};
}

std::vector<fs::path> LookForTaskFiles(const Task& task, TaskRows rows, const std::vector<std::string>& data) {
  return Look(task, rows, data).files;
}

std::vector<fs::path> FindTaskFiles(const Task& task, TaskRows rows, const std::vector<std::string>& data) {
  Found found = Look(task, rows, data);
  if (!found.files.empty()) return std::move(found.files);
  const std::vector<std::string> places(found.places.begin(), found.places.end());
  const std::string missing =
      fmt::format("{}: no file {}; looked in: {}", task.name, fmt::join(PatternsOf(task, rows), ", "),
                  places.empty() ? "nowhere" : fmt::format("{}", fmt::join(places, ", ")));
  if (rows == TaskRows::kShots && !task.shots_made_by.empty())
    Fail("{}; `{} DIR` writes its shots to a directory; or evaluate it with --shots 0", missing, task.shots_made_by);
  Fail("{}; name another directory, or the file as {}=FILE, or pull the data set with `shiftrt pull --dataset {}`",
       missing, task.name, task.name);
}

}  // namespace shiftrt
