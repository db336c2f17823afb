// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/cuda.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <source_location>

#include "runtime/check.h"
#include "runtime/cuda/recording.h"
#include "runtime/cuda/switches.h"
#include "runtime/cuda/upload.h"

namespace shiftrt::gpu {

namespace {

constexpr int kLowestMajor = 8;  // cp.async and bfloat16 matrix products

void CheckCuda(cudaError_t status, const std::source_location& where = std::source_location::current()) {
  if (status != cudaSuccess)
    Fail("CUDA: {} ({}) at {}:{}", cudaGetErrorString(status), cudaGetErrorName(status), where.file_name(),
         where.line());
}

int MajorCapability(int device) {
  int major = 0;
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

std::string WhyTooOld(int device) {
  const int major = MajorCapability(device);
  if (major >= kLowestMajor) return "";
  return fmt::format(
      "GPU {} has compute capability {}.x; {}.0 is the lowest supported (the environment variable CUDA_VISIBLE_DEVICES "
      "can hide it)",
      device, major, kLowestMajor);
}

std::string FindWhyUnavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary)
    return "no NVIDIA driver, or one too old for this build's CUDA";
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) return "no NVIDIA GPU";
  if (status != cudaSuccess) return fmt::format("CUDA does not start: {}", cudaGetErrorString(status));
  return WhyTooOld(0);
}

}  // namespace

// The next three functions are declared in kernels/cuda/platform.cuh, because the kernels do not include a formatting
// library.
void CheckLaunch(int status, const char* kernel) {
  if (status != cudaSuccess)
    Fail("CUDA: launch of {}: {}", kernel, cudaGetErrorString(static_cast<cudaError_t>(status)));
}
void ReportNoCluster(int status, const char* kernel) {
  fmt::print(stderr, "shiftrt: CUDA does not say whether a cluster of {} fits: {}\n", kernel,
             cudaGetErrorString(static_cast<cudaError_t>(status)));
}
bool LaunchesOverlap(Stream stream) {
  static const bool wanted = SwitchedOn("SHIFTRT_CUDA_OVERLAP", true);
  return wanted && MajorCapability(stream.device) >= 9;
}

static void UseDevice(int device) {
  int current = 0;
  CheckCuda(cudaGetDevice(&current));
  if (current != device) CheckCuda(cudaSetDevice(device));
}
void UseDeviceOf(Stream stream) { UseDevice(stream.device); }

const std::string& WhyUnavailable() {
  static const std::string why = FindWhyUnavailable();
  return why;
}

int DeviceCount() {
  int count = 0;
  if (WhyUnavailable().empty()) CheckCuda(cudaGetDeviceCount(&count));
  return count;
}

// Bytes of the device's pool that are free and kept for later allocations.
static int64_t PooledBytes(int device) {
  cudaMemPool_t pool = nullptr;
  CheckCuda(cudaDeviceGetDefaultMemPool(&pool, device));
  uint64_t reserved = 0, used = 0;
  CheckCuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  CheckCuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  return static_cast<int64_t>(reserved - used);
}

std::string PciBusId(int device) {
  char bus_id[32] = {};
  CheckCuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device));
  return bus_id;
}

DeviceInfo QueryDevice(int device) {
  Check(WhyUnavailable().empty(), "CUDA: {}", WhyUnavailable());
  const std::string too_old = WhyTooOld(device);
  Check(too_old.empty(), "CUDA: {}", too_old);
  UseDevice(device);
  cudaDeviceProp properties{};
  CheckCuda(cudaGetDeviceProperties(&properties, device));
  size_t free = 0, total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total));
  return {properties.name,
          properties.major,
          properties.minor,
          properties.multiProcessorCount,
          static_cast<int64_t>(total),
          static_cast<int64_t>(free) + PooledBytes(device),
          PciBusId(device)};
}

StreamOwner::StreamOwner(int device) : stream_{nullptr, device} {
  UseDeviceOf(stream_);
  CheckCuda(cudaStreamCreateWithFlags(&stream_.handle, cudaStreamNonBlocking));
  cudaMemPool_t pool = nullptr;
  CheckCuda(cudaDeviceGetDefaultMemPool(&pool, device));
  uint64_t keep = UINT64_MAX;  // freed memory stays in the pool, because the next batch needs it again
  CheckCuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
}
StreamOwner::~StreamOwner() { cudaStreamDestroy(stream_.handle); }

CUgraphExec_st* Record(Stream stream, const std::function<void()>& body) {
  UseDeviceOf(stream);
  CheckCuda(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(stream.handle, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // the refusal is reported by the exception and must not surface again
    throw;
  }
  cudaError_t status = cudaStreamEndCapture(stream.handle, &graph);
  cudaGraphExec_t recorded = nullptr;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&recorded, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (status != cudaSuccess) cudaGetLastError();
  CheckCuda(status);
  return recorded;
}
void Replay(Stream stream, CUgraphExec_st* recorded) {
  UseDeviceOf(stream);
  CheckCuda(cudaGraphLaunch(recorded, stream.handle));
}
void Forget(CUgraphExec_st* recorded) noexcept { cudaGraphExecDestroy(recorded); }

void ReleaseFreed(Stream stream) {
  UseDeviceOf(stream);
  Synchronize(stream);
  cudaMemPool_t pool = nullptr;
  CheckCuda(cudaDeviceGetDefaultMemPool(&pool, stream.device));
  CheckCuda(cudaMemPoolTrimTo(pool, 0));
}

void* AllocateDevice(Stream stream, int64_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  UseDeviceOf(stream);
  void* p = nullptr;
  // The errors that are cleared are handled here and must not be reported again.
  const auto allocate = [&] {
    const cudaError_t status = cudaMallocAsync(&p, static_cast<size_t>(bytes), stream.handle);
    if (status == cudaErrorMemoryAllocation) cudaGetLastError();
    return status;
  };
  cudaError_t status = allocate();
  if (status == cudaErrorMemoryAllocation) {
    // Freed memory of the pool may lie in pieces that are too small, or wait for work of the stream.
    ReleaseFreed(stream);
    status = allocate();
  }
  if (status == cudaErrorMemoryAllocation) {
    const DeviceInfo info = QueryDevice(stream.device);
    throw OutOfMemory(what, bytes, info.free_bytes, info.memory_bytes);
  }
  CheckCuda(status);
  return p;
}

void FreeDevice(Stream stream, void* p) noexcept {
  if (cudaFreeAsync(p, stream.handle) == cudaSuccess) return;
  // The stream takes no free while another thread records its launches. This one waits for the device instead.
  cudaGetLastError();
  cudaFree(p);
}

static void CopyIn(Stream stream, void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
  UseDeviceOf(stream);
  CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream.handle));
}
void CopyToDevice(Stream stream, void* to, const void* from, int64_t bytes) {
  CopyIn(stream, to, from, bytes, cudaMemcpyHostToDevice);
}

void CopyToHost(Stream stream, void* to, const void* from, int64_t bytes) {
  CopyIn(stream, to, from, bytes, cudaMemcpyDeviceToHost);
  Synchronize(stream);
}

void CopyOnDevice(Stream stream, void* to, const void* from, int64_t bytes) {
  CopyIn(stream, to, from, bytes, cudaMemcpyDeviceToDevice);
}

void CopyRowsOnDevice(Stream stream, void* to, int64_t to_pitch, Pitched from, int64_t bytes, int64_t rows) {
  UseDeviceOf(stream);
  CheckCuda(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from.data, static_cast<size_t>(from.pitch),
                              static_cast<size_t>(bytes), static_cast<size_t>(rows), cudaMemcpyDeviceToDevice,
                              stream.handle));
}

void FillBytes(Stream stream, void* to, int value, int64_t bytes) {
  UseDeviceOf(stream);
  CheckCuda(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), stream.handle));
}

PinnedBuffer::PinnedBuffer(Stream stream, int64_t bytes) {
  UseDeviceOf(stream);
  void* p = nullptr;
  CheckCuda(cudaMallocHost(&p, static_cast<size_t>(bytes)));
  data_ = static_cast<std::byte*>(p);
}
PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

void CopyToPinned(Stream stream, const PinnedBuffer& to, const void* from, int64_t bytes) {
  CopyIn(stream, to.data(), from, bytes, cudaMemcpyDeviceToHost);
}

Event::Event(Stream stream) : stream_(stream) {
  UseDeviceOf(stream_);
  CheckCuda(cudaEventCreate(&event_));
}
Event::~Event() { cudaEventDestroy(event_); }
void Event::Record() {
  UseDeviceOf(stream_);
  CheckCuda(cudaEventRecord(event_, stream_.handle));
}
void Event::Wait() { CheckCuda(cudaEventSynchronize(event_)); }
void Event::WaitQuietly() noexcept { cudaEventSynchronize(event_); }

double SecondsOnDevice(Stream stream, const std::function<void()>& body) {
  Event begin(stream), end(stream);
  begin.Record();
  body();
  end.Record();
  end.Wait();
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e-3;
}

void Synchronize(Stream stream) { CheckCuda(cudaStreamSynchronize(stream.handle)); }

}  // namespace shiftrt::gpu
