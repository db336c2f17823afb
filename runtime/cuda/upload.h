// Copies through memory that the device reads and writes by itself: large uploads of what it cannot read, files that
// are mapped above all; and small numbers that nobody waits for yet.
#pragma once

#include <array>

#include "runtime/cuda/cuda.h"

struct CUevent_st;

namespace shiftrt::gpu {

// Host memory that the device reads by itself: CopyToDevice from it returns at once, and until an event recorded behind
// the copy has happened nobody may write there.
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

// A point in a stream.
class Event {
 public:
  explicit Event(Stream stream);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void Record();
  // Returns when the stream has come there; at once if it was never recorded.
  void Wait();
  // The same for destructors: what failed in the stream is told to whoever asks next.
  void WaitQuietly() noexcept;
  CUevent_st* get() const { return event_; }

 private:
  Stream stream_;
  CUevent_st* event_ = nullptr;
};

// Returns at once; the bytes are there when an event recorded behind this has happened.
void CopyToPinned(Stream stream, const PinnedBuffer& to, const void* from, int64_t bytes);

// Copies through two pinned pieces: while one is on its way, the next is read from its source.
class Uploader {
 public:
  explicit Uploader(Stream stream, int64_t piece_bytes = int64_t{16} << 20) : stream_(stream), piece_(piece_bytes) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;
  // Returns when `from` has been read. What the stream does next finds the bytes in `to`.
  void Copy(void* to, const void* from, int64_t bytes);

 private:
  struct Piece {
    Piece(Stream stream, int64_t bytes) : buffer(stream, bytes), sent(stream) {}
    PinnedBuffer buffer;
    Event sent;
  };
  Stream stream_;
  int64_t piece_;
  std::array<std::unique_ptr<Piece>, 2> pieces_;  // made when first needed
  int next_ = 0;
};

}  // namespace shiftrt::gpu
