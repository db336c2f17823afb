// SPDX-License-Identifier: Apache-2.0
// A file that is being downloaded in pieces, several at once, over any number of runs of the program.
//
// BLOB.shiftrt.incomplete holds the bytes at their places. BLOB.shiftrt.pieces.incomplete says how many of each piece
// are there: after a kill exactly what was written is known, and nothing is fetched twice. Without it (a file of one
// piece, or a BLOB.incomplete of an older huggingface_hub, which is taken over) what is there is a beginning of the
// file. Python's `hf cache prune` removes both; a current huggingface_hub neither reads nor disturbs them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/digest.h"

namespace shiftrt {

// How many bytes of each piece are there, counted from its beginning.
struct Pieces {
  int64_t piece_bytes = 0;
  std::vector<int64_t> done;
  int64_t Present() const;
};
// Of a blob of `size` bytes that is being downloaded; pieces of `piece_bytes` where nothing says otherwise. Changes
// nothing.
Pieces ReadPieces(const std::filesystem::path& blob, int64_t size, int64_t piece_bytes);

class PartialFile {
 public:
  // For a blob of `size` bytes whose name is its checksum (IsChecksum). Continues from what is there. Throws Error.
  PartialFile(const std::filesystem::path& blob, int64_t size, int64_t piece_bytes);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  int64_t pieces() const { return std::ssize(pieces_.done); }
  int64_t Begin(int64_t piece) const { return piece * pieces_.piece_bytes; }
  int64_t End(int64_t piece) const { return std::min(size_, Begin(piece) + pieces_.piece_bytes); }
  int64_t Next(int64_t piece) const {
    return Begin(piece) + pieces_.done[piece];
  }  // the first byte that is missing of it
  bool Complete(int64_t piece) const { return Next(piece) == End(piece); }
  bool Complete() const { return present_ == size_; }
  int64_t present() const { return present_; }

  // The bytes that follow in a piece, not beyond its end. Throws Error for a full disk.
  void Append(int64_t piece, std::string_view bytes);
  // Forgets all bytes. With `in_one_piece`, the file becomes a single piece: for a server that sends no ranges.
  void StartAgain(bool in_one_piece);

  // Computes the checksum of more of the file's beginning, as far as it is there, up to `limit` bytes. False where
  // there is nothing to do at the moment.
  bool Check(int64_t limit);
  // Whether the checksum has reached the end.
  bool Checked() const { return checked_ == size_; }
  // For a checked file: whether it is what its name says. Once.
  bool Right();
  // Flushes the file to disk and gives it its name.
  void Commit();

 private:
  void Record(int64_t piece) const;
  void WriteRecord() const;

  std::filesystem::path blob_, data_, record_;
  int64_t size_, present_ = 0, checked_ = 0;
  Pieces pieces_;
  Digest digest_;
  int fd_ = -1, record_fd_ = -1;  // the record's only where there are several pieces
};

// The lock of a blob, which huggingface_hub takes too: flock on a file of its own.
class FileLock {
 public:
  // Throws Error where the file cannot be made.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool Try();  // whether it is ours; does not wait

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace shiftrt
