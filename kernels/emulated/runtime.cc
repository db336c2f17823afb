// SPDX-License-Identifier: Apache-2.0
// runtime/cuda/cuda.h on the emulator: device memory is host memory that is registered with the machine.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>

#include "kernels/cuda/tiles.h"
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/recording.h"
#include "runtime/cuda/upload.h"

namespace shiftrt::emu {

namespace {

int64_t memory_bytes = int64_t{1} << 30, bytes_to_host = 0, bytes_to_device = 0, drains = 0, replays = 0;
// A setting of a program, which an environment variable may give.
int Setting(const char* variable, int fallback) {
  const char* const setting = std::getenv(variable);
  return setting != nullptr ? std::atoi(setting) : fallback;
}
int devices = Setting("SHIFTRT_EMULATED_DEVICES", 1);
int capability = Setting("SHIFTRT_EMULATED_CAPABILITY", 8);
bool refuse_recordings = false;

}  // namespace

Devices::Devices(int count) { devices = count; }
Devices::~Devices() { devices = 1; }
MemoryLimit::MemoryLimit(int64_t bytes) : before_(memory_bytes) { memory_bytes = bytes; }
MemoryLimit::~MemoryLimit() { memory_bytes = before_; }
ComputeCapability::ComputeCapability(int major) : before_(capability) { capability = major; }
ComputeCapability::~ComputeCapability() { capability = before_; }
int64_t BytesToHost() { return bytes_to_host; }
int64_t BytesToDevice() { return bytes_to_device; }
int64_t Drains() { return drains; }
RefusedRecordings::RefusedRecordings() { refuse_recordings = true; }
RefusedRecordings::~RefusedRecordings() { refuse_recordings = false; }
int64_t Replays() { return replays; }

}  // namespace shiftrt::emu

namespace shiftrt::gpu {

const std::string& WhyUnavailable() {
  static const std::string nothing;
  return nothing;
}

int DeviceCount() { return emu::devices; }
std::string PciBusId(int device) { return fmt::format("emulated:{}", device); }
DeviceInfo QueryDevice(int device) {
  return {"the emulator",  emu::capability, 0, 4, emu::memory_bytes, emu::memory_bytes - emu::AllocatedBytes(device),
          PciBusId(device)};
}
void UseDeviceOf(Stream) {}
bool RunsHopperKernels(int) { return emu::capability == 9; }

StreamOwner::StreamOwner(int device) : stream_{nullptr, device} {
  Check(device >= 0 && device < DeviceCount(), "a stream on device {} of {}", device, DeviceCount());
}
StreamOwner::~StreamOwner() = default;

// A recording is what was submitted, with the arguments of that time.
using Recording = std::vector<std::function<void()>>;
CUgraphExec_st* Record(Stream, const std::function<void()>& body) {
  Check(!emu::refuse_recordings, "the emulator was told to refuse recordings");
  return reinterpret_cast<CUgraphExec_st*>(new Recording(emu::RecordSubmitted(body)));
}
void Replay(Stream, CUgraphExec_st* recorded) {
  ++emu::replays;
  for (const std::function<void()>& work : *reinterpret_cast<const Recording*>(recorded)) work();
}
void Forget(CUgraphExec_st* recorded) noexcept { delete reinterpret_cast<Recording*>(recorded); }

void* AllocateDevice(Stream stream, int64_t bytes, const char* what) {
  emu::RefuseWhileRecording("an allocation");
  const DeviceInfo info = QueryDevice(stream.device);
  if (bytes > info.free_bytes) throw OutOfMemory(what, bytes, info.free_bytes, info.memory_bytes);
  return emu::Allocate(bytes, stream.device);
}
void FreeDevice(Stream, void* p) noexcept { emu::Free(p); }
void ReleaseFreed(Stream) {}

namespace {

// The sizes of pinned buffers by their start addresses.
std::map<const std::byte*, int64_t> pinned;

bool IsPinned(const std::byte* p) {
  const auto above = pinned.upper_bound(p);
  if (above == pinned.begin()) return false;
  const auto& [begin, bytes] = *std::prev(above);
  return p < begin + bytes;
}

// A copy in either direction.
void Copy(Stream stream, void* to, const void* from, int64_t bytes) {
  const auto* const source = static_cast<const std::byte*>(from);
  emu::CheckReach(stream.device, std::array{static_cast<const void*>(to), from}, "a copy");
  const auto copy = [=] { std::copy_n(source, bytes, static_cast<std::byte*>(to)); };
  emu::Submit([=] {
    if (IsPinned(source)) return emu::Defer(copy);
    emu::MakeDeferred();
    copy();
  });
}

}  // namespace

void CopyToDevice(Stream stream, void* to, const void* from, int64_t bytes) {
  emu::Submit([=] { emu::bytes_to_device += bytes; });
  Copy(stream, to, from, bytes);
}
void CopyToHost(Stream stream, void* to, const void* from, int64_t bytes) {
  emu::RefuseWhileRecording("a copy that is waited for");
  emu::bytes_to_host += bytes;
  ++emu::drains;
  Copy(stream, to, from, bytes);
  emu::Finish();
}
void CopyOnDevice(Stream stream, void* to, const void* from, int64_t bytes) { Copy(stream, to, from, bytes); }
void CopyRowsOnDevice(Stream stream, void* to, int64_t to_pitch, Pitched from, int64_t bytes, int64_t rows) {
  Check(bytes <= std::min(to_pitch, from.pitch), "rows of {} bytes that overlap", bytes);
  for (int64_t i = 0; i < rows; ++i)
    Copy(stream, static_cast<std::byte*>(to) + i * to_pitch, static_cast<const std::byte*>(from.data) + i * from.pitch,
         bytes);
}
void FillBytes(Stream stream, void* to, int value, int64_t bytes) {
  emu::CheckReach(stream.device, to, "a fill");
  emu::Submit([=] {
    emu::MakeDeferred();
    std::fill_n(static_cast<std::byte*>(to), bytes, static_cast<std::byte>(value));
  });
}

PinnedBuffer::PinnedBuffer(Stream, int64_t bytes) : data_(new std::byte[static_cast<size_t>(bytes)]) {
  pinned[data_] = bytes;
}
PinnedBuffer::~PinnedBuffer() {
  pinned.erase(data_);
  delete[] data_;
}
void CopyToPinned(Stream stream, const PinnedBuffer& to, const void* from, int64_t bytes) {
  emu::CheckReach(stream.device, from, "a copy");
  emu::Submit([=, target = to.data()] {
    emu::bytes_to_host += bytes;
    emu::MakeDeferred();
    std::fill_n(target, bytes, std::byte{0xff});  // NaN until the copy is waited for
    emu::Defer([=] { std::copy_n(static_cast<const std::byte*>(from), bytes, target); });
  });
}
// For every recorded event, the number of launches before it. Waiting for an event after which nothing was launched
// means waiting until the device is idle, and counts as a drain.
static std::map<const Event*, int64_t> recorded;
Event::Event(Stream stream) : stream_(stream) {}
Event::~Event() { recorded.erase(this); }
void Event::Record() { recorded[this] = emu::Launches(); }
void Event::Wait() {
  const auto at = recorded.find(this);
  if (at != recorded.end() && at->second == emu::Launches()) ++emu::drains;
  emu::MakeDeferred();
}
void Event::WaitQuietly() noexcept { emu::MakeDeferred(); }

double SecondsOnDevice(Stream, const std::function<void()>& body) {
  body();
  return 0;
}
void Synchronize(Stream) {
  emu::RefuseWhileRecording("a wait for the stream");
  ++emu::drains;
  emu::MakeDeferred();
  emu::Finish();
}

}  // namespace shiftrt::gpu
