// Large uploads from memory the device cannot read by itself: files that are mapped, above all.
#pragma once

#include <array>

#include "runtime/cuda.h"

struct CUevent_st;

namespace shiftrt::gpu {

// Host memory that the device reads by itself: CopyToDevice from it returns at once, and until an event recorded behind
// the copy has happened nobody may write there.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(int64_t bytes);
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
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void Record(Stream stream);
  // Returns when the stream has come there; at once if it was never recorded.
  void Wait();
  CUevent_st* get() const { return event_; }

 private:
  CUevent_st* event_ = nullptr;
};

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
    explicit Piece(int64_t bytes) : buffer(bytes) {}
    PinnedBuffer buffer;
    Event sent;
  };
  Stream stream_;
  int64_t piece_;
  std::array<std::unique_ptr<Piece>, 2> pieces_;  // made when first needed
  int next_ = 0;
};

}  // namespace shiftrt::gpu
