// SPDX-License-Identifier: Apache-2.0
// A file that is downloaded in pieces, several at once, over any number of runs of the program.
// BLOB.shiftrt.incomplete holds the bytes at their offsets. BLOB.shiftrt.pieces.incomplete records how many bytes of
// each piece are there, so that after a kill no byte is downloaded twice. If that record is missing (a file of one
// piece, or a BLOB.incomplete of an older huggingface_hub, which is used too), the bytes are a beginning of the file.
// Python's `hf cache prune` removes both; a current huggingface_hub neither reads nor disturbs them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/digest.h"
#include "runtime/descriptor.h"

namespace shiftrt {

// The number of bytes of each piece that are there, counted from its beginning.
struct Pieces {
  int64_t piece_bytes = 0;
  std::vector<int64_t> done;
  int64_t Present() const;
};
// Reads the record of a blob of `size` bytes that is being downloaded; without a record, pieces have `piece_bytes`.
// Changes nothing.
Pieces ReadPieces(const std::filesystem::path& blob, int64_t size, int64_t piece_bytes);

class PartialFile {
 public:
  // Opens the file of a blob of `size` bytes whose name is its checksum (IsChecksum), and continues from the bytes on
  // disk. Throws Error.
  PartialFile(const std::filesystem::path& blob, int64_t size, int64_t piece_bytes);

  int64_t pieces() const { return std::ssize(pieces_.done); }
  int64_t Begin(int64_t piece) const { return piece * pieces_.piece_bytes; }
  int64_t End(int64_t piece) const { return std::min(size_, Begin(piece) + pieces_.piece_bytes); }
  int64_t Next(int64_t piece) const {
    return Begin(piece) + pieces_.done[piece];
  }  // the first byte that is missing of it
  bool Complete(int64_t piece) const { return Next(piece) == End(piece); }
  bool Complete() const { return present_ == size_; }
  int64_t present() const { return present_; }

  // Appends bytes to a piece, not beyond its end. Throws Error for a full disk.
  void Append(int64_t piece, std::string_view bytes);
  // Discards all bytes. With `in_one_piece`, the file becomes a single piece, for servers that do not send ranges.
  void StartAgain(bool in_one_piece);

  // Continues the checksum over the beginning of the file, as far as it is there, by at most `limit` bytes. False if
  // there is nothing to do at the moment.
  bool Check(int64_t limit);
  // True when the checksum has reached the end.
  bool Checked() const { return checked_ == size_; }
  // True if the checksum of a checked file is its name. Call it once.
  bool Right();
  // Flushes the file to disk and renames it to the blob's name.
  void Commit();

 private:
  void Record(int64_t piece) const;
  void WriteRecord() const;

  std::filesystem::path blob_, data_, record_;
  int64_t size_, present_ = 0, checked_ = 0;
  Pieces pieces_;
  Digest digest_;
  Descriptor file_, record_file_;  // there is a record only for several pieces
};

// The lock of a blob (flock on a file of its own), which huggingface_hub uses too.
class FileLock {
 public:
  // Throws Error if the file cannot be made.
  explicit FileLock(const std::filesystem::path& path);

  bool Try();  // true if the lock is taken now; does not wait

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace shiftrt
