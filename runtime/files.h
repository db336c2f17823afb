// Reading without copying, and writing without ever leaving a half-written file under its final name.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/check.h"

namespace shiftrt {

// A whole regular file mapped read-only. Throws Error with the path and the system's reason.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

// A whole file as it is; for text people give, see runtime/text.h. Throws Error if larger than `limit` bytes.
std::string ReadFile(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 32);

// Writes to a temporary name in the same directory; Commit() flushes to disk and renames. Without Commit (an exception,
// a full disk, Ctrl-C) the destructor removes the temporary file and whatever stood under `path` before is untouched.
// A device, a pipe and /dev/stdout get the bytes as they come.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(std::span<const std::byte> bytes);  // throws Interrupted between pieces of a long one
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text.data(), text.size()))); }
  void Flush();   // to disk; nothing can run out of space after it
  void Commit();  // flushes

 private:
  std::filesystem::path path_, temporary_;  // temporary_ is empty for a stream
  int fd_ = -1;
};

// The whole of a file at once, through AtomicFile.
void WriteFile(const std::filesystem::path& path, std::string_view text);

// Files of one directory that appear together: Commit() flushes them all, then renames them in the order of Create().
// Without it the destructor removes them, and the directories that were made for them.
class AtomicDirectory {
 public:
  explicit AtomicDirectory(const std::filesystem::path& path);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  AtomicFile& Create(const std::string& name) { return files_.emplace_back(path_ / name); }
  void Commit();

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // directories, the deepest first
  std::deque<AtomicFile> files_;
};

// Set by the tools' signal handler; long loops look at it through CheckInterrupted().
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};
void RequestInterrupt() noexcept;  // async-signal-safe
void CheckInterrupted();           // throws Interrupted once RequestInterrupt() was called

// 64-bit XXH3 of the bytes as 16 hexadecimal digits; for provenance, not for security.
std::string HashHex(std::span<const std::byte> bytes);
std::string HashHex(std::string_view text);

}  // namespace shiftrt
