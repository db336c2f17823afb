// SPDX-License-Identifier: Apache-2.0
#include "hub/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "runtime/check.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// The record has these words, then one per piece, in the byte order of the machine. It is not meant for other machines.
constexpr int64_t kRecordMagic = 0x3165636569706673;  // "sfpiece1"
constexpr int64_t kRecordHead = 3;                    // magic, size, bytes of a piece

constexpr int64_t kMostPieces = 1 << 16;  // whatever size a server claims

constexpr const char* kData = ".shiftrt.incomplete";
constexpr const char* kRecord = ".shiftrt.pieces.incomplete";
constexpr const char* kOlder = ".incomplete";

[[noreturn]] void FailFile(const char* action, const fs::path& path) {
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT)
    Fail(
        "{}: the disk is full. What is there is kept: make room and give the command again, or put the cache elsewhere "
        "with HF_HUB_CACHE=DIR",
        path.string());
  Fail("{}: cannot {}: {}", path.string(), action, std::strerror(error));
}

fs::path WithSuffix(const fs::path& path, const char* suffix) { return path.string() + suffix; }

Descriptor Open(const fs::path& path, int flags) {
  Descriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file.is_open()) FailFile("open it", path);
  return file;
}

void WriteAt(const Descriptor& file, const void* data, size_t size, int64_t offset, const fs::path& path) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::pwrite(file.get(), at, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailFile("write it", path);
    at += n, offset += n, size -= n;
  }
}

// Reads up to `size` bytes and returns how many there were.
int64_t ReadAt(const Descriptor& file, void* data, int64_t size, int64_t offset) {
  int64_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(file.get(), static_cast<char*>(data) + done, size - done, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += n;
  }
  return done;
}

// The words of a record; none if there is no such file. Without the lock of the blob, another program may empty or
// remove it.
std::vector<int64_t> ReadRecord(const fs::path& path) {
  constexpr int64_t kMostWords = kRecordHead + kMostPieces + 1;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) return {};
  std::vector<int64_t> words(kMostWords);
  const int64_t bytes = ReadAt(file, words.data(), kMostWords * static_cast<int64_t>(sizeof(int64_t)), 0);
  words.resize(bytes / sizeof(int64_t));
  return words;
}

}  // namespace

int64_t Pieces::Present() const { return std::accumulate(done.begin(), done.end(), int64_t{0}); }

Pieces ReadPieces(const fs::path& blob, int64_t size, int64_t piece_bytes) {
  piece_bytes = std::max(piece_bytes, size / kMostPieces + 1);
  std::error_code none;
  fs::path data = WithSuffix(blob, kData);
  const fs::path record = WithSuffix(blob, kRecord);
  const bool ours = fs::exists(data, none);
  if (!ours) data = WithSuffix(blob, kOlder);
  const int64_t there = fs::is_regular_file(data, none) ? static_cast<int64_t>(fs::file_size(data, none)) : 0;
  const auto pieces_of = [&](int64_t bytes) { return (size + bytes - 1) / bytes; };

  if (ours) {
    const std::vector<int64_t> words = ReadRecord(record);
    if (std::ssize(words) >= kRecordHead && words[0] == kRecordMagic && words[1] == size && words[2] > 0 &&
        std::ssize(words) == kRecordHead + pieces_of(words[2])) {
      Pieces pieces{words[2], {words.begin() + kRecordHead, words.end()}};
      bool sound = true;
      for (int64_t p = 0; p < std::ssize(pieces.done); ++p) {
        const int64_t begin = p * pieces.piece_bytes, done = pieces.done[p];
        sound = sound && done >= 0 && done <= std::min(pieces.piece_bytes, size - begin) &&
                (done == 0 || begin + done <= there);
      }
      if (sound) return pieces;
    }
  }
  Pieces pieces{piece_bytes, std::vector<int64_t>(pieces_of(piece_bytes))};
  for (int64_t p = 0; p < std::ssize(pieces.done); ++p)
    pieces.done[p] =
        std::clamp(std::min(there, size) - p * piece_bytes, int64_t{0}, std::min(piece_bytes, size - p * piece_bytes));
  return pieces;
}

PartialFile::PartialFile(const fs::path& blob, int64_t size, int64_t piece_bytes)
    : blob_(blob),
      data_(WithSuffix(blob, kData)),
      record_(WithSuffix(blob, kRecord)),
      size_(size),
      pieces_(ReadPieces(blob, size, piece_bytes)),
      digest_(blob.filename().string(), size) {
  std::error_code none;
  if (!fs::exists(data_, none)) {
    fs::remove(record_, none);
    fs::rename(WithSuffix(blob, kOlder), data_, none);  // fails if there is none
  }
  present_ = pieces_.Present();
  file_ = Open(data_, O_RDWR | O_CREAT);
  if (pieces() > 1 || fs::exists(record_, none)) record_file_ = Open(record_, O_RDWR | O_CREAT);
  WriteRecord();
}

void PartialFile::WriteRecord() const {
  if (!record_file_.is_open()) return;
  std::vector<int64_t> words = {kRecordMagic, size_, pieces_.piece_bytes};
  words.insert(words.end(), pieces_.done.begin(), pieces_.done.end());
  if (::ftruncate(record_file_.get(), 0) != 0) FailFile("empty it", record_);
  WriteAt(record_file_, words.data(), words.size() * sizeof(int64_t), 0, record_);
}

void PartialFile::Record(int64_t piece) const {
  if (!record_file_.is_open()) return;
  WriteAt(record_file_, &pieces_.done[piece], sizeof(int64_t),
          (kRecordHead + piece) * static_cast<int64_t>(sizeof(int64_t)), record_);
}

void PartialFile::Append(int64_t piece, std::string_view bytes) {
  WriteAt(file_, bytes.data(), bytes.size(), Next(piece), data_);
  pieces_.done[piece] += std::ssize(bytes);
  present_ += std::ssize(bytes);
  Record(piece);
}

void PartialFile::StartAgain(bool in_one_piece) {
  if (in_one_piece) pieces_ = {size_, {0}};
  std::fill(pieces_.done.begin(), pieces_.done.end(), 0);
  present_ = checked_ = 0;
  digest_ = Digest(blob_.filename().string(), size_);
  WriteRecord();
  if (::ftruncate(file_.get(), 0) != 0) FailFile("empty it", data_);
}

bool PartialFile::Check(int64_t limit) {
  int64_t end = checked_;
  const int64_t stop = std::min(size_, checked_ + limit);
  while (end < stop) {
    const int64_t piece = end / pieces_.piece_bytes;
    const int64_t reach = std::min(stop, Next(piece));
    if (reach <= end) break;
    end = reach;
  }
  if (end == checked_) return false;
  std::vector<std::byte> bytes(end - checked_);
  shiftrt::Check(ReadAt(file_, bytes.data(), std::ssize(bytes), checked_) == std::ssize(bytes),
                 "{}: cannot read back bytes {} to {}", data_.string(), checked_, end);
  digest_.Update(bytes);
  checked_ = end;
  return true;
}

bool PartialFile::Right() { return digest_.Hex() == blob_.filename().string(); }

void PartialFile::Commit() {
  // An older file that was taken over may be longer than it should be.
  if (::ftruncate(file_.get(), size_) != 0 || ::fsync(file_.get()) != 0) FailFile("flush it to disk", data_);
  if (::rename(data_.c_str(), blob_.c_str()) != 0) FailFile("rename it", data_);
  std::error_code none;
  fs::remove(record_, none);
}

FileLock::FileLock(const fs::path& path) : path_(path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  Check(!error, "{}: cannot create the directory: {}", path.parent_path().string(), error.message());
}

bool FileLock::Try() {
  while (true) {
    if (!file_.is_open()) file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664));
    if (!file_.is_open()) FailFile("open it", path_);
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK || errno == EINTR) return false;
      if (errno == ENOTSUP || errno == ENOLCK || errno == ENOSYS) return true;  // a file system without locks
      FailFile("lock it", path_);
    }
    // The program that held the lock may have removed the file; then other programs would not see this lock.
    struct stat ours {
    }, there{};
    if (::fstat(file_.get(), &ours) == 0 && ::stat(path_.c_str(), &there) == 0 && ours.st_ino == there.st_ino)
      return true;
    file_ = Descriptor();
  }
}

}  // namespace shiftrt
