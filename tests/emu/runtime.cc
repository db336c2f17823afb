// runtime/cuda.h on the emulator: device memory is host memory that the machine knows.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>

#include "runtime/check.h"
#include "runtime/cuda.h"
#include "runtime/cuda_upload.h"
#include "tests/emu/device.h"
#include "tests/emu/machine.h"

namespace shiftrt::emu {

namespace {

int64_t memory_bytes = int64_t{1} << 30, bytes_to_host = 0;

}  // namespace

MemoryLimit::MemoryLimit(int64_t bytes) : before_(memory_bytes) { memory_bytes = bytes; }
MemoryLimit::~MemoryLimit() { memory_bytes = before_; }
int64_t BytesToHost() { return bytes_to_host; }

}  // namespace shiftrt::emu

namespace shiftrt::gpu {

const std::string& WhyUnavailable() {
  static const std::string nothing;
  return nothing;
}
bool BuiltWithCuda() { return true; }

int DeviceCount() { return 1; }
DeviceInfo QueryDevice() {
  return {"the emulator", 8, 0, 1, emu::memory_bytes, emu::memory_bytes - emu::AllocatedBytes()};
}
void SelectDevice(int) {}

StreamOwner::StreamOwner() = default;
StreamOwner::~StreamOwner() = default;

void LaunchGraph::Run(Stream, const std::function<void()>& body) {
  ++runs_;
  body();
}
void LaunchGraph::Reset() noexcept { runs_ = 0; }

void* AllocateDevice(Stream, int64_t bytes, const char* what) {
  const DeviceInfo info = QueryDevice();
  if (bytes > info.free_bytes) throw OutOfMemory(what, bytes, info.free_bytes, info.memory_bytes);
  return emu::Allocate(bytes);
}
void FreeDevice(Stream, void* p) noexcept { emu::Free(p); }

namespace {

// Sizes of pinned buffers, by where they begin.
std::map<const std::byte*, int64_t> pinned;

bool IsPinned(const std::byte* p) {
  const auto above = pinned.upper_bound(p);
  if (above == pinned.begin()) return false;
  const auto& [begin, bytes] = *std::prev(above);
  return p < begin + bytes;
}

}  // namespace

void CopyToDevice(Stream, void* to, const void* from, int64_t bytes) {
  const auto* const source = static_cast<const std::byte*>(from);
  const auto copy = [=] { std::copy_n(source, bytes, static_cast<std::byte*>(to)); };
  if (IsPinned(source)) return emu::Defer(copy);
  emu::MakeDeferred();
  copy();
}
void CopyToHost(Stream stream, void* to, const void* from, int64_t bytes) {
  emu::bytes_to_host += bytes;
  CopyToDevice(stream, to, from, bytes);
}
void CopyOnDevice(Stream stream, void* to, const void* from, int64_t bytes) { CopyToDevice(stream, to, from, bytes); }
void FillBytes(Stream, void* to, int value, int64_t bytes) {
  emu::MakeDeferred();
  std::fill_n(static_cast<std::byte*>(to), bytes, static_cast<std::byte>(value));
}

PinnedBuffer::PinnedBuffer(int64_t bytes) : data_(new std::byte[static_cast<size_t>(bytes)]) { pinned[data_] = bytes; }
PinnedBuffer::~PinnedBuffer() {
  pinned.erase(data_);
  delete[] data_;
}
Event::Event() = default;
Event::~Event() = default;
void Event::Record(Stream) {}
void Event::Wait() { emu::MakeDeferred(); }

double SecondsOnDevice(Stream, const std::function<void()>& body) {
  body();
  return 0;
}
void Synchronize(Stream) { emu::MakeDeferred(); }

}  // namespace shiftrt::gpu
