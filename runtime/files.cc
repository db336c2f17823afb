// SPDX-License-Identifier: Apache-2.0
#include "runtime/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/interrupts_held.h"
#include "runtime/printable.h"
#include "runtime/temporary_name.h"

namespace shiftrt {

namespace {

[[noreturn]] void FailSystem(const char* action, const std::filesystem::path& path) {
  const int error = errno;
  Fail("{}: cannot {}: {}", path.string(), action, error == ENOMEM ? "out of memory" : std::strerror(error));
}

// A pipe is opened without waiting for a writer; OpenedSize then refuses it.
Descriptor OpenToRead(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) FailSystem("open it", path);
  return file;
}

// The size of a regular file.
uint64_t OpenedSize(int fd, const std::filesystem::path& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) FailSystem("look at it", path);
  Check(S_ISREG(info.st_mode), "{}: not a regular file", path.string());
  return static_cast<uint64_t>(info.st_size);
}

// Git LFS puts a small text into the place of each file that `git lfs pull` has not downloaded.
void RefuseLfsPointer(std::string_view bytes, const std::filesystem::path& path) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/", kSize = "\nsize ";
  constexpr size_t kMostBytes = 1024;  // the limit of Git LFS
  if (bytes.size() >= kMostBytes || !bytes.starts_with(kBegin)) return;
  const size_t at = bytes.find(kSize);
  const std::string_view size = at == bytes.npos ? "?" : bytes.substr(at + kSize.size());
  Fail("{}: a Git LFS pointer in the place of a file of {} bytes; `git lfs pull` in its repository downloads the file",
       path.string(), Printable(size.substr(0, size.find_first_not_of("0123456789"))));
}

// Waits until a pipe or a terminal has something to read, or its end. Polls, so that an interrupt ends the wait. Of a
// named pipe that no program has opened for writing, only the first seconds are waited for.
void AwaitInput(int fd, bool named, const std::filesystem::path& path) {
  constexpr int kSlice = 100, kNamedSlices = 20;  // milliseconds; slices
  for (int slice = 0;; ++slice) {
    CheckInterrupted();
    pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waiting, 1, kSlice);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) FailSystem("wait for it", path);
    Check(!named || slice < kNamedSlices, "{}: a pipe into which no program writes", path.string());
  }
}

// Copies a pipe or a terminal to its end into memory that can be mapped.
Descriptor CopyToMemory(const Descriptor& from, bool named, const std::filesystem::path& path) {
  Descriptor copy(::memfd_create("text", MFD_CLOEXEC));
  if (!copy.is_open()) FailSystem("keep it in memory", path);
  std::array<char, 1 << 16> chunk = {};
  for (bool any = false;;) {
    AwaitInput(from.get(), named && !any, path);
    const ssize_t n = ::read(from.get(), chunk.data(), chunk.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) FailSystem("read it", path);
    if (n == 0) return copy;
    any = true;
    for (ssize_t done = 0; done < n;) {
      const ssize_t written = ::write(copy.get(), chunk.data() + done, static_cast<size_t>(n - done));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) FailSystem("keep it in memory", path);
      done += written;
    }
  }
}

std::atomic<bool> interrupted = false;
std::atomic<int> interrupts_held = 0;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) { Map(OpenToRead(path)); }

MappedFile MappedFile::OfText(const std::filesystem::path& path) {
  const Descriptor fd = OpenToRead(path);
  struct stat info = {};
  const bool looked = ::fstat(fd.get(), &info) == 0;
  const bool pipe = looked && S_ISFIFO(info.st_mode);
  MappedFile file;
  file.path_ = path;
  if (pipe || ::isatty(fd.get()) == 1) {
    std::error_code none;
    const bool named = pipe && std::filesystem::is_fifo(std::filesystem::symlink_status(path, none));
    file.Map(CopyToMemory(fd, named, path));
  } else {
    file.Map(fd);
  }
  return file;
}

void MappedFile::Map(const Descriptor& fd) {
  const uint64_t size = OpenedSize(fd.get(), path_);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) FailSystem("map it", path_);
  try {
    RefuseLfsPointer({static_cast<const char*>(address), size}, path_);
  } catch (...) {
    ::munmap(address, size);
    throw;
  }
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

std::string ReadFile(const std::filesystem::path& path, uint64_t limit) {
  const Descriptor fd = OpenToRead(path);
  const uint64_t size = OpenedSize(fd.get(), path);
  Check(size <= limit, "{}: has {} bytes, at most {} are allowed for this kind of file", path.string(), size, limit);
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd.get(), text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailSystem("read it", path);
    Check(n > 0, "{}: ends after {} of {} bytes", path.string(), done, size);
    done += static_cast<size_t>(n);
  }
  RefuseLfsPointer(text, path);
  return text;
}

bool IsStream(const std::filesystem::path& path) {
  std::error_code none;
  const bool link = std::filesystem::is_symlink(path, none);
  if (link && (path.string().starts_with("/dev/") || path.string().starts_with("/proc/"))) return true;
  return std::filesystem::is_other(path, none);
}

bool Exists(const std::filesystem::path& path) noexcept {
  std::error_code none;
  return std::filesystem::exists(path, none);
}

bool IsDirectory(const std::filesystem::path& path) noexcept {
  std::error_code none;
  return std::filesystem::is_directory(path, none);
}

void FlushDirectory(const std::filesystem::path& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.is_open()) ::fsync(directory.get());
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  Check(!std::filesystem::is_directory(path), "{}: is a directory, expected a file to write", path.string());
  if (IsStream(path)) {
    // A named pipe that nobody reads would be waited for. It is opened without waiting, and then written with waiting.
    fd_ = Descriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK));
    if (!fd_.is_open() && errno == ENXIO) Fail("{}: a pipe that no program reads", path_.string());
    if (!fd_.is_open()) FailSystem("open it for writing", path_);
    ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) & ~O_NONBLOCK);
    return;
  }
  // A file that is replaced keeps its permissions, and one that may not be written is not replaced.
  struct stat before;
  const bool exists = ::stat(path_.c_str(), &before) == 0;
  if (exists && ::access(path_.c_str(), W_OK) != 0) FailSystem("write it", path_);
  RemoveAbandoned(path_);
  do {
    temporary_ = TemporaryName(path_);
    fd_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd_.is_open()) FailSystem("create a temporary file in its directory", path_);
  } while (!LockTemporary(fd_.get()));
  HoldTemporary(temporary_);
  if (exists) ::fchmod(fd_.get(), before.st_mode & 0777);
}

AtomicFile::~AtomicFile() {
  if (!fd_.is_open() || temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  ReleaseTemporary(temporary_);
}

void AtomicFile::Write(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{1} << 26;  // small enough to react to Ctrl-C
  while (!bytes.empty()) {
    CheckInterrupted();
    const ssize_t n = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kPiece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailSystem("write it", path_);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::Flush() {
  if (temporary_.empty()) return;  // a stream is not on disk
  if (::fsync(fd_.get()) != 0) FailSystem("flush it to disk", path_);
}

void AtomicFile::Rename() {
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) FailSystem("rename the temporary file to it", path_);
  ReleaseTemporary(temporary_);
  fd_ = Descriptor();
}

void AtomicFile::Commit() {
  Flush();
  Rename();
  if (!temporary_.empty()) FlushDirectory(path_.has_parent_path() ? path_.parent_path() : ".");
}

void WriteFile(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.Write(text);
  file.Commit();
}

std::filesystem::path WithName(const std::filesystem::path& path) {
  const auto named = [](const std::filesystem::path& normal) {
    return normal.has_filename() ? normal : normal.parent_path();
  };
  const std::filesystem::path whole = named(path.lexically_normal()), name = whole.filename();
  return name == "." || name == ".." ? named(std::filesystem::absolute(whole).lexically_normal()) : whole;
}

DirectoryLock::DirectoryLock(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  constexpr int kTries = 6000;
  for (int tries = 0; tries < kTries; ++tries) {
    if (!fd_.is_open() || ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR))
      return;
    if (interrupted && interrupts_held == 0) break;
    ::usleep(10'000);
  }
  CheckInterrupted();
  Fail(
      "{}: another program has held the lock of this directory for a minute; nothing was changed in it. Write to "
      "another directory, or stop that program",
      path.string());
}

AtomicDirectory::AtomicDirectory(const std::filesystem::path& path) : path_(path) { Make(path); }

AtomicFile& AtomicDirectory::Create(const std::string& name) {
  const std::filesystem::path path = path_ / name;
  changed_.insert(path.parent_path());
  created_.insert(path);
  // Another program that made the directory and gave up removes it again as long as it is empty.
  for (int tries = 1;; ++tries) {
    Make(path.parent_path());
    try {
      return files_.emplace_back(path);
    } catch (const Error&) {
      if (tries == 10) throw;
    }
  }
}

void AtomicDirectory::Remove(const std::string& name) { removed_.insert(path_ / name); }

void AtomicDirectory::Make(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> missing;  // the deepest first
  for (std::filesystem::path at = directory; !at.empty() && !std::filesystem::exists(at, error); at = at.parent_path())
    missing.push_back(at);
  std::filesystem::create_directories(directory, error);
  made_.insert(made_.begin(), missing.begin(), missing.end());
  Check(!error, "{}: cannot create the directory: {}", directory.string(), error.message());
}

AtomicDirectory::~AtomicDirectory() {
  files_.clear();
  std::error_code ignored;
  for (const auto& directory : made_) std::filesystem::remove(directory, ignored);
}

void AtomicDirectory::Commit() {
  for (AtomicFile& file : files_) file.Flush();
  CheckInterrupted();
  std::optional<DirectoryLock> lock;
  if (!IsOwnTemporary(path_)) lock.emplace(path_);  // a temporary directory has this process's lock already
  made_.clear();
  for (AtomicFile& file : files_) file.Rename();
  for (const std::filesystem::path& file : removed_) {
    std::error_code ignored;
    if (created_.contains(file) || !std::filesystem::remove(file, ignored)) continue;
    if (file.parent_path() != path_) std::filesystem::remove(file.parent_path(), ignored);
  }
  for (const std::filesystem::path& changed : changed_) FlushDirectory(changed);
}

void RequestInterrupt() noexcept { interrupted = true; }

void CheckInterrupted() {
  if (interrupted && interrupts_held == 0) throw Interrupted();
}

InterruptsHeld::InterruptsHeld() { ++interrupts_held; }
InterruptsHeld::~InterruptsHeld() { --interrupts_held; }
bool InterruptsHeld::Any() noexcept { return interrupts_held > 0; }

std::string HashHex(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

std::string HashHex(std::string_view text) { return HashHex(std::as_bytes(std::span(text.data(), text.size()))); }

struct PiecesHash::State {
  XXH3_state_t xxh3;
};

PiecesHash::PiecesHash() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
PiecesHash::~PiecesHash() = default;

void PiecesHash::Add(std::span<const std::byte> piece) {
  XXH3_64bits_update(&state_->xxh3, piece.data(), piece.size());
}

std::string PiecesHash::Hex() const { return fmt::format("{:016x}", XXH3_64bits_digest(&state_->xxh3)); }

}  // namespace shiftrt
