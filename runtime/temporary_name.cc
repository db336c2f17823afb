// SPDX-License-Identifier: Apache-2.0
#include "runtime/temporary_name.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/descriptor.h"

namespace shiftrt {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = ".tmp-shiftrt-";
constexpr size_t kRandomDigits = 8;

std::mutex held_mutex;
std::array<const fs::path*, 1024> held = {};

// The number of the process in a temporary name, "17" of "out.json.tmp-shiftrt-17-0123abcd"; "" for another name.
std::string_view ProcessIn(std::string_view name) {
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos) return "";
  const std::string_view end = name.substr(mark + kMark.size());
  const size_t digits = std::min(end.find_first_not_of("0123456789"), end.size());
  const std::string_view random = end.substr(digits);
  return random.size() == 1 + kRandomDigits && random[0] == '-' &&
                 random.find_first_not_of("0123456789abcdef", 1) == std::string_view::npos
             ? end.substr(0, digits)
             : "";
}

bool IsTemporaryOf(std::string_view name, std::string_view output) {
  return name.starts_with(output) && name.rfind(kMark) == output.size() && !ProcessIn(name).empty();
}

}  // namespace

fs::path TemporaryName(const fs::path& output) {
  static std::mt19937 random(std::random_device{}());
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  fs::path name = output;
  name += fmt::format("{}{}-{:0{}x}", kMark, ::getpid(), static_cast<uint32_t>(random()), kRandomDigits);
  return name;
}

bool IsOwnTemporary(const fs::path& path) { return ProcessIn(path.filename().string()) == std::to_string(::getpid()); }

void HoldTemporary(const fs::path& path) {
  const std::lock_guard lock(held_mutex);
  if (const auto place = std::find(held.begin(), held.end(), nullptr); place != held.end()) *place = &path;
}

void ReleaseTemporary(const fs::path& path) {
  const std::lock_guard lock(held_mutex);
  std::replace(held.begin(), held.end(), &path, static_cast<const fs::path*>(nullptr));
}

void RemoveHeldTemporaries() noexcept {
  // No other thread is waited for, because it may be the one that has no memory.
  const std::unique_lock lock(held_mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  std::error_code none;
  for (const fs::path* path : held)
    if (path != nullptr && ::unlink(path->c_str()) != 0) fs::remove_all(*path, none);
}

bool LockTemporary(int fd) {
  // The lock is free, or held for a moment by a process that takes the file for an abandoned one and removes it.
  while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) continue;
  struct stat info;
  return ::fstat(fd, &info) == 0 && info.st_nlink > 0;
}

void RemoveAbandoned(const fs::path& output) {
  const fs::path directory = output.has_parent_path() ? output.parent_path() : ".";
  const std::string name = output.filename().string();
  std::error_code none;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(directory, none), end; !none && at != end; at.increment(none))
    if (IsTemporaryOf(at->path().filename().string(), name)) found.push_back(at->path());
  for (const fs::path& path : found) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (!file.is_open() && errno == ELOOP) fs::remove(path, none);  // no program makes such a link
    if (file.is_open() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, none);
  }
}

}  // namespace shiftrt
