// SPDX-License-Identifier: Apache-2.0
// The GPU interface of the rest of the program: memory, streams, copies. This header needs no CUDA toolkit. cuda.cc
// implements it with the CUDA runtime, kernels/emulated/runtime.cc with the emulator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/tensor.h"

struct CUstream_st;
struct CUgraphExec_st;

namespace shiftrt::linalg {
class Array;
class Solver;
}  // namespace shiftrt::linalg

namespace shiftrt::gpu {

// A stream and its device. Every call that takes a stream works on that device, whichever was used before.
struct Stream {
  CUstream_st* handle = nullptr;
  int device = 0;
};

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // includes freed memory that our own pool keeps for reuse
  std::string pci_bus_id;  // "00000000:17:00.0"; names the device to the driver's management library
};

// Why no kernel of this build can run on this machine (no driver, no device, an old device), or "" if it can. Queries
// the driver only, and only once.
const std::string& WhyUnavailable();
int DeviceCount();
// Why this program cannot sum over GPUs (the build or this machine has no NCCL), or "" if it can. Loads NCCL.
const std::string& WhyNoCommunicator();
// Throws Error if the GPU cannot be used.
DeviceInfo QueryDevice(int device);
// As DeviceInfo has it, without starting work on the GPU. Throws Error.
std::string PciBusId(int device);
// Makes the stream's device current for the calling thread, for libraries that work on the current device.
void UseDeviceOf(Stream stream);

// A solver on this device, for the large float64 matrices of a Context (runtime/linalg/solver.h). Throws Error if the
// GPU cannot be used, and on first use if cuBLAS or cuSOLVER is not installed. Use from one thread.
std::shared_ptr<linalg::Solver> MakeSolver(int device);
// Where such a solver has an array, and the stream in which the array is allocated, used and freed. Work of another
// stream on it must be ordered by its caller.
struct DeviceMatrix {
  Stream stream;
  double* data = nullptr;
};
DeviceMatrix There(const linalg::Array& array);

// Owns a stream. All work of one decoder runs in one stream, in order.
class StreamOwner {
 public:
  explicit StreamOwner(int device);
  ~StreamOwner();
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

// A recorded sequence of launches, replayed at the cost of one launch. The launches must not change in number, shape or
// arguments between two runs, and must not allocate after the first run. If the driver refuses to record them, the run
// launches them one by one, and the next one tries again; after three refusals in a row, or if the environment variable
// SHIFTRT_CUDA_GRAPHS is 0, every run launches them one by one.
class LaunchGraph {
 public:
  LaunchGraph() = default;
  ~LaunchGraph() { Reset(); }
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;
  // The first run calls `body`, which launches into `stream`. The second run records what `body` launches and replays
  // it. Later runs replay it. Throws what `body` throws when it is called outside a recording.
  void Run(Stream stream, const std::function<void()>& body);
  // Discards the recording and forgets refusals; the next run counts as the first.
  void Reset() noexcept;

 private:
  bool first_ = true;
  int refusals_ = 0;  // in a row
  CUgraphExec_st* recorded_ = nullptr;
};
// Why the last recording of this process was refused; empty where none was.
std::string WhyLaunchGraphRefused();

// Allocates from the device's stream-ordered pool. Throws OutOfMemory that states `what`, `bytes` and what is free.
void* AllocateDevice(Stream stream, int64_t bytes, const char* what);
void FreeDevice(Stream stream, void* p) noexcept;
// Waits for the stream, and gives freed memory of its device's pool back to the driver, for libraries that allocate
// outside the pool.
void ReleaseFreed(Stream stream);
void CopyToDevice(Stream stream, void* to, const void* from, int64_t bytes);
// Returns when the copy is complete.
void CopyToHost(Stream stream, void* to, const void* from, int64_t bytes);
void CopyOnDevice(Stream stream, void* to, const void* from, int64_t bytes);
// Copies the first `bytes` of each of `rows` rows, which are `pitch` bytes apart in either array.
struct Pitched {
  const void* data = nullptr;
  int64_t pitch = 0;
};
void CopyRowsOnDevice(Stream stream, void* to, int64_t to_pitch, Pitched from, int64_t bytes, int64_t rows);
void FillBytes(Stream stream, void* to, int value, int64_t bytes);
// Waits for the stream. Throws Error if any of its work has failed.
void Synchronize(Stream stream);

// Seconds that the device spends on the work that `body` launches into `stream`.
double SecondsOnDevice(Stream stream, const std::function<void()>& body);

// Owns `size` elements of device memory. Not initialised.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Stream stream, int64_t size, const char* what)
      : stream_(stream),
        size_(size),
        data_(static_cast<T*>(AllocateDevice(stream, size * static_cast<int64_t>(sizeof(T)), what))) {}
  DeviceBuffer(Stream stream, std::span<const T> values, const char* what)
      : DeviceBuffer(stream, static_cast<int64_t>(values.size()), what) {
    CopyToDevice(stream, data_, values.data(), static_cast<int64_t>(values.size_bytes()));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { Swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) FreeDevice(stream_, data_);
  }
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  Stream stream() const { return stream_; }
  // Grows to at least `size` elements on the stream's device. Growing and changing the device lose the contents.
  T* Reserve(Stream stream, int64_t size, const char* what) {
    if (size > size_ || stream.device != stream_.device) {
      *this = DeviceBuffer();  // free the old memory before allocating the new
      *this = DeviceBuffer(stream, size, what);
    }
    return data_;
  }

 private:
  void Swap(DeviceBuffer& other) {
    std::swap(stream_, other.stream_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
  }
  Stream stream_;
  int64_t size_ = 0;
  T* data_ = nullptr;
};

}  // namespace shiftrt::gpu
