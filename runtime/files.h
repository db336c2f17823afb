// SPDX-License-Identifier: Apache-2.0
// Reads files without copying, and writes files so that no incomplete file ever has its final name.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/check.h"
#include "runtime/descriptor.h"

namespace shiftrt {

// A whole regular file mapped read-only. Throws Error with the path and the system's reason, and for a Git LFS pointer,
// which stands in the place of a file that was not downloaded.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  /// Opens a text, which may come from a pipe or a terminal too; such a text is read to its end and kept in memory.
  /// \param path The file, or a pipe such as /dev/stdin.
  /// \return The bytes of the text.
  /// \throws Error as the constructor does, and for a named pipe that no program opens for writing.
  static MappedFile OfText(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void Map(const Descriptor& fd);

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

// The bytes of a whole file; runtime/text.h reads text, which may be compressed. Throws Error above `limit` bytes, and
// for a Git LFS pointer.
std::string ReadFile(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 32);

// Writes to a temporary name in the same directory; Commit() flushes to disk and renames. Without Commit (an exception,
// a full disk, Ctrl-C) the destructor removes the temporary file, and an existing file at `path` is unchanged.
// Bytes for a device, a pipe or /dev/stdout are written directly.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(std::span<const std::byte> bytes);  // in pieces; throws Interrupted between two of them
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text.data(), text.size()))); }
  void Flush();   // to disk; a lack of space is reported here at the latest
  void Rename();  // to the final name; the caller has flushed the file, and flushes its directory
  void Commit();  // flushes, renames, and flushes the directory

 private:
  std::filesystem::path path_, temporary_;  // temporary_ is empty for a stream
  Descriptor fd_;
};

// Returns whether `path` is a device or a pipe, which cannot be replaced by a rename, or a link such as /dev/stdout,
// which may lead to a file.
bool IsStream(const std::filesystem::path& path);
// Return whether there is a file or directory of this name, and whether it is a directory. They return false for what
// cannot be looked at: a search goes on after a directory that may not be read, and a name that is too long is none.
bool Exists(const std::filesystem::path& path) noexcept;
bool IsDirectory(const std::filesystem::path& path) noexcept;

// Returns `path` in a form whose filename() is the name of what it stands for: without a final slash, and absolute
// where it would end in `.` or `..`.
std::filesystem::path WithName(const std::filesystem::path& path);

// Flushes the names of its files to disk, as far as the file system lets it.
void FlushDirectory(const std::filesystem::path& path);

// Writes a whole file with AtomicFile.
void WriteFile(const std::filesystem::path& path, std::string_view text);

// The lock of a directory (flock), without which no program of shiftrt renames files of it or changes one of them; so
// the files of one program are never mixed with those of another. Waits a minute for the program that holds it, then
// throws Error; renames take milliseconds. A file system without locks has none to wait for.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& path);

 private:
  Descriptor fd_;
};

// Writes several files of one directory, or of directories in it ("lora/model"). Commit() flushes them all, then
// renames them in the order of Create() while it holds the DirectoryLock. Without Commit, the destructor removes the
// temporary files and the directories created for them.
class AtomicDirectory {
 public:
  explicit AtomicDirectory(const std::filesystem::path& path);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  AtomicFile& Create(const std::string& name);
  // Commit() removes the file too, after the renames, unless it is one of those that were created. A directory that
  // this leaves empty is removed with it.
  void Remove(const std::string& name);
  void Commit();

 private:
  void Make(const std::filesystem::path& directory);

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // directories, the deepest first
  std::set<std::filesystem::path> changed_;  // directories with new names
  std::deque<AtomicFile> files_;
  std::set<std::filesystem::path> created_, removed_;
};

// Throws Interrupted (include/shiftrt/error.h) once RequestInterrupt() was called. Long loops call it regularly.
void CheckInterrupted();

// 64-bit XXH3 of the bytes as 16 hexadecimal digits; for provenance, not for security.
std::string HashHex(std::span<const std::byte> bytes);
std::string HashHex(std::string_view text);
// The same hash of bytes that come in pieces.
class PiecesHash {
 public:
  PiecesHash();
  ~PiecesHash();
  void Add(std::span<const std::byte> piece);
  void Add(std::string_view piece) { Add(std::as_bytes(std::span(piece.data(), piece.size()))); }
  std::string Hex() const;  // the hash of the pieces so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shiftrt
