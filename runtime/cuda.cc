#include "runtime/cuda.h"

#include <cuda_runtime_api.h>

#include <source_location>

#include "runtime/check.h"
#include "runtime/cuda_upload.h"

namespace shiftrt::gpu {

namespace {

constexpr int kLowestMajor = 8;  // cp.async and bfloat16 matrix products

void CheckCuda(cudaError_t status, const std::source_location& where = std::source_location::current()) {
  if (status != cudaSuccess)
    Fail("CUDA: {} ({}) at {}:{}", cudaGetErrorString(status), cudaGetErrorName(status), where.file_name(),
         where.line());
}

std::string FindWhyUnavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary)
    return "no NVIDIA driver, or one too old for this build's CUDA";
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) return "no NVIDIA GPU";
  if (status != cudaSuccess) return fmt::format("CUDA does not start: {}", cudaGetErrorString(status));
  int major = 0;
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < kLowestMajor)
    return fmt::format("the GPU has compute capability {}.x; {}.0 is the lowest supported", major, kLowestMajor);
  return "";
}

}  // namespace

// These two are declared in kernels/cuda/platform.cuh, whose files take no formatting library.
void CheckLaunch(int status, const char* kernel) {
  if (status != cudaSuccess)
    Fail("CUDA: launch of {}: {}", kernel, cudaGetErrorString(static_cast<cudaError_t>(status)));
}
bool LaunchesOverlap() {
  int device = 0, major = 0;
  CheckCuda(cudaGetDevice(&device));
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

const std::string& WhyUnavailable() {
  static const std::string why = FindWhyUnavailable();
  return why;
}

bool BuiltWithCuda() { return true; }

int DeviceCount() {
  int count = 0;
  if (WhyUnavailable().empty()) CheckCuda(cudaGetDeviceCount(&count));
  return count;
}

// Bytes of the device's pool that nobody holds: freed, and kept for the next who asks.
static int64_t PooledBytes(int device) {
  cudaMemPool_t pool = nullptr;
  CheckCuda(cudaDeviceGetDefaultMemPool(&pool, device));
  uint64_t reserved = 0, used = 0;
  CheckCuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  CheckCuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  return static_cast<int64_t>(reserved - used);
}

DeviceInfo QueryDevice() {
  Check(WhyUnavailable().empty(), "CUDA: {}", WhyUnavailable());
  int device = 0;
  CheckCuda(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  CheckCuda(cudaGetDeviceProperties(&properties, device));
  size_t free = 0, total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total));
  return {properties.name,
          properties.major,
          properties.minor,
          properties.multiProcessorCount,
          static_cast<int64_t>(total),
          static_cast<int64_t>(free) + PooledBytes(device)};
}

void SelectDevice(int index) {
  Check(WhyUnavailable().empty(), "CUDA: {}", WhyUnavailable());
  if (index < 0 || index >= DeviceCount())
    FailUsage("--device cuda:{}: this machine has devices 0 to {}", index, DeviceCount() - 1);
  CheckCuda(cudaSetDevice(index));
  cudaMemPool_t pool = nullptr;
  CheckCuda(cudaDeviceGetDefaultMemPool(&pool, index));
  uint64_t keep = UINT64_MAX;  // freed memory stays in the pool: the next batch wants it again
  CheckCuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
}

StreamOwner::StreamOwner() { CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
StreamOwner::~StreamOwner() { cudaStreamDestroy(stream_); }

void LaunchGraph::Run(Stream stream, const std::function<void()>& body) {
  if (++runs_ == 1) return body();
  if (recorded_ == nullptr) {
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      throw;
    }
    CheckCuda(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&recorded_, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda(status);
  }
  CheckCuda(cudaGraphLaunch(recorded_, stream));
}

void LaunchGraph::Reset() noexcept {
  if (recorded_ != nullptr) cudaGraphExecDestroy(recorded_);
  recorded_ = nullptr;
  runs_ = 0;
}

void* AllocateDevice(Stream stream, int64_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  void* p = nullptr;
  const cudaError_t status = cudaMallocAsync(&p, static_cast<size_t>(bytes), stream);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error is reported here and must not surface again
    const DeviceInfo info = QueryDevice();
    throw OutOfMemory(what, bytes, info.free_bytes, info.memory_bytes);
  }
  CheckCuda(status);
  return p;
}

void FreeDevice(Stream stream, void* p) noexcept { cudaFreeAsync(p, stream); }

void CopyToDevice(Stream stream, void* to, const void* from, int64_t bytes) {
  CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream));
}

void CopyToHost(Stream stream, void* to, const void* from, int64_t bytes) {
  CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream));
  Synchronize(stream);
}

void CopyOnDevice(Stream stream, void* to, const void* from, int64_t bytes) {
  CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
}

void FillBytes(Stream stream, void* to, int value, int64_t bytes) {
  CheckCuda(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), stream));
}

PinnedBuffer::PinnedBuffer(int64_t bytes) {
  void* p = nullptr;
  CheckCuda(cudaMallocHost(&p, static_cast<size_t>(bytes)));
  data_ = static_cast<std::byte*>(p);
}
PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

Event::Event() { CheckCuda(cudaEventCreate(&event_)); }
Event::~Event() { cudaEventDestroy(event_); }
void Event::Record(Stream stream) { CheckCuda(cudaEventRecord(event_, stream)); }
void Event::Wait() { CheckCuda(cudaEventSynchronize(event_)); }

double SecondsOnDevice(Stream stream, const std::function<void()>& body) {
  Event begin, end;
  begin.Record(stream);
  body();
  end.Record(stream);
  end.Wait();
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e-3;
}

void Synchronize(Stream stream) { CheckCuda(cudaStreamSynchronize(stream)); }

}  // namespace shiftrt::gpu
