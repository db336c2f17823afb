// runtime/cuda.h on the emulator: device memory is host memory that the machine knows.
#include <cstring>

#include "runtime/cuda.h"
#include "tests/emu/machine.h"

namespace shiftrt::gpu {

const std::string& WhyUnavailable() {
  static const std::string nothing;
  return nothing;
}
bool BuiltWithCuda() { return true; }

int DeviceCount() { return 1; }
DeviceInfo QueryDevice() { return {"the emulator", 8, 0, 4, int64_t{1} << 30, int64_t{1} << 30}; }
void SelectDevice(int) {}

StreamOwner::StreamOwner() = default;
StreamOwner::~StreamOwner() = default;

void LaunchGraph::Run(Stream, const std::function<void()>& body) {
  ++runs_;
  body();
}
void LaunchGraph::Reset() noexcept { runs_ = 0; }

void* AllocateDevice(Stream, int64_t bytes, const char*) { return emu::Allocate(bytes); }
void FreeDevice(Stream, void* p) noexcept { emu::Free(p); }
void CopyToDevice(Stream, void* to, const void* from, int64_t bytes) { std::memcpy(to, from, bytes); }
void CopyToHost(Stream, void* to, const void* from, int64_t bytes) { std::memcpy(to, from, bytes); }
void CopyOnDevice(Stream, void* to, const void* from, int64_t bytes) { std::memcpy(to, from, bytes); }
void FillBytes(Stream, void* to, int value, int64_t bytes) { std::memset(to, value, bytes); }
void Synchronize(Stream) {}

}  // namespace shiftrt::gpu
