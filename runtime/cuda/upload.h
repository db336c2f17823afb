// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies through pinned host memory: large uploads of pageable memory (mapped files above all), and
// downloads of a few numbers that are read later.
#pragma once

#include <array>

#include "runtime/cuda/cuda.h"

struct CUevent_st;

namespace shiftrt::gpu {

// Pinned (page-locked) host memory. CopyToDevice from it returns at once; do not write to it until an event that was
// recorded after the copy has occurred.
class PinnedBuffer {
 public:
  PinnedBuffer(Stream stream, int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// A point in the work of a stream.
class Event {
 public:
  explicit Event(Stream stream);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void Record();
  // Returns when the stream has reached the event; at once if the event was never recorded.
  void Wait();
  // The same for destructors: does not report an error of the stream; the next call on the stream does.
  void WaitQuietly() noexcept;
  CUevent_st* get() const { return event_; }

 private:
  Stream stream_;
  CUevent_st* event_ = nullptr;
};

// Returns at once; the bytes are in `to` when an event that is recorded after this call has occurred.
void CopyToPinned(Stream stream, const PinnedBuffer& to, const void* from, int64_t bytes);

// Copies through two pinned buffers: while one is in transfer, the other is filled from the source.
class Uploader {
 public:
  explicit Uploader(Stream stream, int64_t piece_bytes = int64_t{16} << 20) : stream_(stream), piece_(piece_bytes) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;
  // Returns when `from` has been read. Later work of the stream finds the bytes in `to`.
  void Copy(void* to, const void* from, int64_t bytes);

 private:
  struct Piece {
    Piece(Stream stream, int64_t bytes) : buffer(stream, bytes), sent(stream) {}
    PinnedBuffer buffer;
    Event sent;
  };
  Stream stream_;
  int64_t piece_;
  std::array<std::unique_ptr<Piece>, 2> pieces_;  // created on first use
  int next_ = 0;
};

}  // namespace shiftrt::gpu
