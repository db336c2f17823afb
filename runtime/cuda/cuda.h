// GPUs as the rest of the program sees them: memory, streams, copies. This header needs no CUDA toolkit; cuda.cc
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
class Solver;
}

namespace shiftrt::gpu {

// A stream and the device it is of. Whatever takes one works on that device, whichever was used before.
struct Stream {
  CUstream_st* handle = nullptr;
  int device = 0;
};

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // what our own pool keeps for reuse among them
};

// Why no kernel of this build can run here (no driver, no device, an old one), or "" where it can. Touches nothing but
// the driver, and only once.
const std::string& WhyUnavailable();
// Whether this build has the backend at all.
bool BuiltWithCuda();
int DeviceCount();
// Why GPUs cannot add up what each of them holds (the build or this machine has no NCCL), or "". Loads it.
const std::string& WhyNoCommunicator();
// Throws Error where the GPU cannot be used.
DeviceInfo QueryDevice(int device);
// For libraries that work on the device the calling thread has made current.
void UseDeviceOf(Stream stream);

// For a Context's large float64 matrices (runtime/linalg/solver.h), on this device. Throws Error where the GPU cannot
// be used, and at its first use where cuBLAS or cuSOLVER is not installed. Use from one thread.
std::shared_ptr<linalg::Solver> MakeSolver(int device);

// A stream in which everything of one decoder happens, in order.
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

// A sequence of launches that is the same every time, replayed at the cost of one. The launches may not change in
// number, shape or arguments between two runs, nor allocate after the first.
class LaunchGraph {
 public:
  LaunchGraph() = default;
  ~LaunchGraph() { Reset(); }
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;
  // Calls `body`, which launches into `stream`: the first time plainly, the second to record it, later not at all.
  void Run(Stream stream, const std::function<void()>& body);
  // The next run is a first one.
  void Reset() noexcept;

 private:
  int64_t runs_ = 0;
  CUgraphExec_st* recorded_ = nullptr;
};

// From the device's stream-ordered pool. Throws OutOfMemory that says what was asked and what is free.
void* AllocateDevice(Stream stream, int64_t bytes, const char* what);
void FreeDevice(Stream stream, void* p) noexcept;
void CopyToDevice(Stream stream, void* to, const void* from, int64_t bytes);
// Returns when the bytes are there.
void CopyToHost(Stream stream, void* to, const void* from, int64_t bytes);
void CopyOnDevice(Stream stream, void* to, const void* from, int64_t bytes);
void FillBytes(Stream stream, void* to, int value, int64_t bytes);
// Throws Error if anything in the stream has failed.
void Synchronize(Stream stream);

// Seconds the device spends on what `body` launches into `stream`.
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
  // Grows to at least `size` elements, on the stream's device; what was in it is lost when it grows or moves.
  T* Reserve(Stream stream, int64_t size, const char* what) {
    if (size > size_ || stream.device != stream_.device) {
      *this = DeviceBuffer();  // before the larger one is asked for
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
