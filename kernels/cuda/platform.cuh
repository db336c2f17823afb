// SPDX-License-Identifier: Apache-2.0
// PTX, warp primitives and the kernel launch, which no other file has but hopper.cuh. A kernel is a struct with `Args`,
// `kThreads` and `static void Run(const Args&)`. It uses only the functions below, so that the same source compiles
// with nvcc for a GPU and, with SHIFTRT_EMULATED, with the host compiler for the emulator in kernels/emulated/.
//
//   Thread() Block() GridBlocks() Lane() Warp()      indices of the calling thread
//   SharedArena, Shared<T>                           dynamic shared memory, allocated array by array
//   SyncThreads() SyncWarp() SyncGrid()              barriers; the last in cooperative launches only
//   ShuffleXor() Shuffle()                           warp collectives
//   AtomicAdd()                                      on shared memory, and on global memory between blocks
//   LastToArrive()                                   whether all other blocks of a group have passed here
//   WaitForEarlier()                                 until earlier launches have ended, in kernels that wait themselves
//   AllowNext()                                      lets the next launch start, in kernels that say so themselves
//   CopyAsync16() CopyAsyncCommit() CopyAsyncWait()  cp.async: 16 bytes from global to shared memory, or zeros
//   LoadMatrices() LoadMatricesTransposed()          ldmatrix.x4
//   MultiplyAccumulate()                             mma.sync.m16n8k16, float32 accumulators
//   MultiplyAccumulateDouble()                       mma.sync.m16n8k4 in float64, or two m8n8k4
//   Load8() LoadOnce8() Store8() LoadShared4() ...   16-byte accesses; Store2(): 4 bytes
//   Pack2() LoadPairs() StorePairs()                 16-bit elements in pairs; 16 bytes of them
//   Widen() Narrow()                                 16-bit floating point from and to float32
//   LoadOnceWords() BytePermute()                    2 to 16 bytes of quantised weights; a choice of bytes of two words
//   DotBytes()                                       dp4a: four products of bytes, added to an integer
//   Bits() FloatOf()                                 the bits of a float32, and the float32 of these bits
//   Larger() Magnitude()                             the larger of two float32, NaN if one is NaN; the absolute value
//   Exp() Exp2() Log() Quotient() ReciprocalSqrt() ...  functions whose fast form differs between GPU and CPU
#pragma once

#include <cstdint>

#include "kernels/cuda/grid.h"
#include "runtime/dtype.h"

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/primitives.h"
#else

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>

#define SHIFTRT_DEVICE __device__ __forceinline__

namespace shiftrt::gpu {

SHIFTRT_DEVICE int Thread() { return static_cast<int>(threadIdx.x); }
SHIFTRT_DEVICE Index3 Block() {
  return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
}
SHIFTRT_DEVICE Index3 GridBlocks() {
  return {static_cast<int>(gridDim.x), static_cast<int>(gridDim.y), static_cast<int>(gridDim.z)};
}
SHIFTRT_DEVICE int Lane() { return Thread() % kWarpSize; }
SHIFTRT_DEVICE int Warp() { return Thread() / kWarpSize; }

template <typename T>
using Shared = T*;

class SharedArena {
 public:
  SHIFTRT_DEVICE SharedArena() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];  // for the tiles of tiles.h
    at_ = dynamic_shared;
  }
  template <typename T>
  SHIFTRT_DEVICE Shared<T> Take(int count) {
    T* taken = reinterpret_cast<T*>(at_);
    at_ += SharedBytes<T>(count);
    return taken;
  }

 private:
  unsigned char* at_;
};

SHIFTRT_DEVICE void SyncThreads() { __syncthreads(); }
SHIFTRT_DEVICE void SyncWarp(uint32_t mask = kFullWarp) { __syncwarp(mask); }
SHIFTRT_DEVICE void SyncGrid() { cooperative_groups::this_grid().sync(); }

template <typename T>
SHIFTRT_DEVICE T ShuffleXor(T value, int lane_mask, uint32_t mask = kFullWarp) {
  return __shfl_xor_sync(mask, value, lane_mask);
}
template <typename T>
SHIFTRT_DEVICE T Shuffle(T value, int lane, uint32_t mask = kFullWarp) {
  return __shfl_sync(mask, value, lane);
}

// Returns the previous value.
SHIFTRT_DEVICE uint32_t AtomicAdd(Shared<uint32_t> to, uint32_t value) { return atomicAdd(to, value); }
// In global memory, between blocks too, it is the same instruction for 32 bits.
SHIFTRT_DEVICE void AtomicAdd(uint64_t* to, uint64_t value) {
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// Every thread of a block calls it once. True, for all of its threads, in the last of `blocks` blocks to call it with
// this counter, which sees what the others wrote to global memory before. `arrivals` must be 0 before the launch, and
// is 0 after it. `flag` has one element, which nothing else uses between the calls of a launch.
//
// The barrier orders the writes of the block's threads before thread 0's fence, which is cumulative, and the fence
// before the addition. In the last block, whose addition reads what those of all others wrote, the second fence orders
// the additions before what follows, and the barrier passes that on to its other threads. It is the order in which
// cooperative groups synchronise a grid, but nobody waits. The store of 0 needs no atomic: no other block comes.
SHIFTRT_DEVICE bool LastToArrive(uint32_t* arrivals, uint32_t blocks, Shared<uint32_t> flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const bool last = atomicAdd(arrivals, 1u) + 1 == blocks;
    __threadfence();
    if (last) *arrivals = 0;
    *flag = last ? 1 : 0;
  }
  __syncthreads();
  return *flag != 0;
}

SHIFTRT_DEVICE void WaitForEarlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next launch may start once a thread of every block has called it, or the block has ended.
SHIFTRT_DEVICE void AllowNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

SHIFTRT_DEVICE uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// If `valid` is false, nothing is read and the 16 bytes become zero.
template <typename T>
SHIFTRT_DEVICE void CopyAsync16(Shared<T> to, const T* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
SHIFTRT_DEVICE void CopyAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when all but the latest kPending groups of this thread are complete.
template <int kPending>
SHIFTRT_DEVICE void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements. Lanes 8 i .. 8 i + 7 give the addresses of the rows of matrix i.
template <typename T>
SHIFTRT_DEVICE void LoadMatrices(uint32_t (&out)[4], Shared<T> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(row))
               : "memory");
}
template <typename T>
SHIFTRT_DEVICE void LoadMatricesTransposed(uint32_t (&out)[4], Shared<T> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// d (16 x 8) += a (16 x 16) b (16 x 8), with the fragment layout of PTX.
template <typename T>
SHIFTRT_DEVICE void MultiplyAccumulate(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (DTypeOf<T>::value == DType::kBFloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// d (16 x 8) += a (16 x 4) b (4 x 8), with d and a as two halves of eight rows. Lane l holds a[l / 4][l % 4],
// b[l % 4][l / 4], and d[l / 4][2 (l % 4)] with its right neighbour.
SHIFTRT_DEVICE void MultiplyAccumulateDouble(double (&upper)[2], double (&lower)[2], double a_upper, double a_lower,
                                             double b) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+d"(upper[0]), "+d"(upper[1]), "+d"(lower[0]), "+d"(lower[1])
               : "d"(a_upper), "d"(a_lower), "d"(b));
#else
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(upper[0]), "+d"(upper[1])
               : "d"(a_upper), "d"(b));
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(lower[0]), "+d"(lower[1])
               : "d"(a_lower), "d"(b));
#endif
}

SHIFTRT_DEVICE float Widen(float x) { return x; }
SHIFTRT_DEVICE float Widen(BFloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
SHIFTRT_DEVICE float Widen(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }
template <typename T>
SHIFTRT_DEVICE T Narrow(float x) {
  if constexpr (DTypeOf<T>::value == DType::kFloat32) {
    return x;
  } else {
    T out;
    if constexpr (DTypeOf<T>::value == DType::kBFloat16) {
      out.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    } else {
      out.bits = __half_as_ushort(__float2half_rn(x));
    }
    return out;
  }
}

template <typename T>
SHIFTRT_DEVICE void Unpack8(const uint4& packed, float (&out)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    T low, high;
    low.bits = static_cast<uint16_t>(words[i]);
    high.bits = static_cast<uint16_t>(words[i] >> 16);
    out[2 * i] = Widen(low);
    out[2 * i + 1] = Widen(high);
  }
}
SHIFTRT_DEVICE void Join8(const float4& a, const float4& b, float (&out)[8]) {
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
// Loads eight consecutive elements from global memory, 16-byte aligned, and widens them.
template <typename T>
SHIFTRT_DEVICE void Load8(const T* from, float (&out)[8]) {
  if constexpr (sizeof(T) == 4) {
    Join8(*reinterpret_cast<const float4*>(from), *reinterpret_cast<const float4*>(from + 4), out);
  } else {
    Unpack8<T>(*reinterpret_cast<const uint4*>(from), out);
  }
}
// The same for data that is not read again soon (weights and cached keys in decoding); it bypasses L1. The elements
// keep their stored form, so that several loads can be in flight before the first is widened.
template <typename T>
struct Raw8 {
  uint4 words[sizeof(T) / 2] = {};
};
template <typename T>
SHIFTRT_DEVICE Raw8<T> LoadOnce8(const T* from) {
  Raw8<T> raw;
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i)
    raw.words[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
  return raw;
}
template <typename T>
SHIFTRT_DEVICE void Widen8(const Raw8<T>& raw, float (&out)[8]) {
  if constexpr (sizeof(T) == 4) {
    for (int i = 0; i < 2; ++i) {
      out[4 * i] = __uint_as_float(raw.words[i].x), out[4 * i + 1] = __uint_as_float(raw.words[i].y);
      out[4 * i + 2] = __uint_as_float(raw.words[i].z), out[4 * i + 3] = __uint_as_float(raw.words[i].w);
    }
  } else {
    Unpack8<T>(raw.words[0], out);
  }
}
// Loads 2, 4, 8 or 16 bytes, aligned to as many, that are not read again soon. Two bytes are the low half of a word.
template <int kBytes>
SHIFTRT_DEVICE void LoadOnceWords(const uint8_t* from, uint32_t (&out)[(kBytes + 3) / 4]) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
    out[0] = words.x, out[1] = words.y, out[2] = words.z, out[3] = words.w;
  } else if constexpr (kBytes == 8) {
    const uint2 words = __ldcs(reinterpret_cast<const uint2*>(from));
    out[0] = words.x, out[1] = words.y;
  } else if constexpr (kBytes == 4) {
    out[0] = __ldcs(reinterpret_cast<const uint32_t*>(from));
  } else {
    out[0] = __ldcs(reinterpret_cast<const uint16_t*>(from));
  }
}
// Loads eight consecutive 16-bit elements in pairs of Pack2(), 16-byte aligned.
template <typename T>
SHIFTRT_DEVICE void LoadPairs(const T* from, uint32_t (&pairs)[4]) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  pairs[0] = words.x, pairs[1] = words.y, pairs[2] = words.z, pairs[3] = words.w;
}
// Byte i of the result is that of the eight bytes of a (0 to 3) and b (4 to 7) whose number is digit i of `selector`.
SHIFTRT_DEVICE uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
// `sum` plus the products of the four bytes of a with those of b. Each word has signed or unsigned bytes.
template <bool kSignedA, bool kSignedB>
SHIFTRT_DEVICE int32_t DotBytes(uint32_t a, uint32_t b, int32_t sum) {
  int32_t out;
  if constexpr (kSignedA && kSignedB) {
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(sum));
  } else if constexpr (kSignedA) {
    asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(sum));
  } else if constexpr (kSignedB) {
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(sum));
  } else {
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(sum));
  }
  return out;
}
template <typename T>
SHIFTRT_DEVICE uint32_t Pack2(float low, float high) {
  return static_cast<uint32_t>(Narrow<T>(low).bits) | static_cast<uint32_t>(Narrow<T>(high).bits) << 16;
}
template <typename T>
SHIFTRT_DEVICE void Store8(T* to, const float (&in)[8]) {
  if constexpr (sizeof(T) == 4) {
    reinterpret_cast<float4*>(to)[0] = make_float4(in[0], in[1], in[2], in[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(in[4], in[5], in[6], in[7]);
  } else {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(Pack2<T>(in[0], in[1]), Pack2<T>(in[2], in[3]), Pack2<T>(in[4], in[5]), Pack2<T>(in[6], in[7]));
  }
}
// Stores two consecutive 16-bit elements, 4-byte aligned.
template <typename T>
SHIFTRT_DEVICE void Store2(T* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = Pack2<T>(low, high);
}
// Stores eight consecutive 16-bit elements in pairs of Pack2(), 16-byte aligned.
template <typename T>
SHIFTRT_DEVICE void StorePairs(T* to, const uint32_t (&pairs)[4]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
SHIFTRT_DEVICE void LoadShared4(Shared<float> from, float (&out)[4]) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
}
SHIFTRT_DEVICE void LoadShared4(Shared<uint32_t> from, uint32_t (&out)[4]) {
  const uint4 a = *reinterpret_cast<const uint4*>(from);
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
}
SHIFTRT_DEVICE void StoreShared4(Shared<float> to, float a, float b, float c, float d) {
  *reinterpret_cast<float4*>(to) = make_float4(a, b, c, d);
}
SHIFTRT_DEVICE void StoreShared4(Shared<uint32_t> to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  *reinterpret_cast<uint4*>(to) = make_uint4(a, b, c, d);
}

SHIFTRT_DEVICE float Larger(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
SHIFTRT_DEVICE float Magnitude(float x) { return fabsf(x); }
SHIFTRT_DEVICE float Exp(float x) { return __expf(x); }
SHIFTRT_DEVICE double Exp(double x) { return exp(x); }
// Results below 2^-126 become 0.
SHIFTRT_DEVICE float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
// Within two units in the last place; 0 if b is above 2^126. Without the branch that a / b has.
SHIFTRT_DEVICE float Quotient(float a, float b) { return __fdividef(a, b); }
SHIFTRT_DEVICE float Log(float x) { return logf(x); }
SHIFTRT_DEVICE double Log(double x) { return log(x); }
SHIFTRT_DEVICE float Tanh(float x) { return tanhf(x); }  // not tanh.approx, which has only 11 bits
SHIFTRT_DEVICE float Erf(float x) { return erff(x); }
SHIFTRT_DEVICE float SquareRoot(float x) { return sqrtf(x); }
SHIFTRT_DEVICE double SquareRoot(double x) { return sqrt(x); }
SHIFTRT_DEVICE uint32_t Bits(float x) { return __float_as_uint(x); }
SHIFTRT_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
SHIFTRT_DEVICE float Infinity() { return __int_as_float(0x7f800000); }
SHIFTRT_DEVICE float ReciprocalSqrt(float x) { return rsqrtf(x); }
SHIFTRT_DEVICE void SinCos(double x, double* sine, double* cosine) { sincos(x, sine, cosine); }

// Throws Error naming the kernel. Defined in runtime/cuda, so that device code needs no formatting library.
void CheckLaunch(int status, const char* kernel);
// Says on stderr why a device cannot tell whether a cluster of the kernel fits. Its callers use another kernel then.
void ReportNoCluster(int status, const char* kernel);
// True if a launch on the stream's device may start before the previous one has ended: on compute capability 9.0,
// unless the environment variable SHIFTRT_CUDA_OVERLAP is 0.
bool LaunchesOverlap(Stream stream);

// A launch first allows the next launch to start, as far as there is room, and then waits, unless the kernel does
// either itself. The wait returns when all earlier launches have ended and their writes are visible, so kernels need no
// synchronisation of their own.
template <typename K>
__global__ void __launch_bounds__(K::kThreads, LeastBlocks<K>()) Entry(const __grid_constant__ typename K::Args args) {
  if constexpr (!AllowsNextItself<K>()) AllowNext();
  if constexpr (!WaitsItself<K>()) WaitForEarlier();
  K::Run(args);
}

// Asks for what a kernel may not have without asking, once per kernel and device. Returns whether its code contains the
// wait: code built for an architecture below 9.0, which the driver translates, does not. Two threads that ask at the
// same time ask for the same. All kernels ask for one division of a multiprocessor's memory into shared memory and L1,
// because it changes only when the multiprocessor is idle, and the blocks of the next kernel are to start before. It is
// the largest: the driver rounds a smaller request up to whole blocks of the kernel, so that kernels would differ.
template <typename K>
bool AskForResources(Stream stream) {
  constexpr int kClusterWithoutAsking = 8, kHasWait = 90;
  static std::atomic<uint64_t> asked = 0, waits = 0;
  const uint64_t bit = uint64_t{1} << (stream.device % 64);
  if ((asked.load() & bit) != 0 && stream.device < 64) return (waits.load() & bit) != 0;
  const auto ask = [](cudaFuncAttribute attribute, int value) {
    CheckLaunch(cudaFuncSetAttribute(Entry<K>, attribute, value), __PRETTY_FUNCTION__);
  };
  ask(cudaFuncAttributeMaxDynamicSharedMemorySize, MostSharedBytes<K>());
  ask(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if constexpr (ClusterBlocks<K>() > kClusterWithoutAsking) ask(cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaFuncAttributes attributes{};
  CheckLaunch(cudaFuncGetAttributes(&attributes, Entry<K>), __PRETTY_FUNCTION__);
  const bool has_wait = attributes.ptxVersion >= kHasWait;
  if (has_wait) waits.fetch_or(bit);
  asked.fetch_or(bit);
  return has_wait;
}

// The attributes of a launch refer to this object. `overlaps`: the launch may start before the previous one has ended.
template <typename K>
class LaunchConfig {
 public:
  LaunchConfig(Stream stream, const Grid& grid, bool overlaps) {
    config_.gridDim = dim3(grid.x, grid.y, grid.z);
    config_.blockDim = dim3(K::kThreads);
    config_.dynamicSmemBytes = grid.shared_bytes;
    config_.stream = stream.handle;
    config_.attrs = attributes_;
    if (grid.cooperative) {
      Next(cudaLaunchAttributeCooperative).cooperative = 1;
    } else if (overlaps) {
      Next(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
    }
    if constexpr (ClusterBlocks<K>() > 1) {
      cudaLaunchAttributeValue& cluster = Next(cudaLaunchAttributeClusterDimension);
      cluster.clusterDim.x = ClusterBlocks<K>();
      cluster.clusterDim.y = cluster.clusterDim.z = 1;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchAttributeValue& Next(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = id;
    return attribute.val;
  }
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_ = {};
};

template <typename K>
void Launch(Stream stream, const Grid& grid, const typename K::Args& args) {
  UseDeviceOf(stream);
  const bool waits = AskForResources<K>(stream);
  const LaunchConfig<K> config(stream, grid, waits && LaunchesOverlap(stream));
  CheckLaunch(cudaLaunchKernelEx(config.get(), Entry<K>, args), __PRETTY_FUNCTION__);
}

}  // namespace shiftrt::gpu

#endif  // SHIFTRT_EMULATED

namespace shiftrt::gpu {

SHIFTRT_DEVICE float Silu(float x) { return Quotient(x, 1.0f + Exp(-x)); }
// The tanh form of gelu: x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
SHIFTRT_DEVICE float GeluTanh(float x) { return Quotient(x, 1.0f + Exp(x * (-1.59576912f - 0.0713548163f * x * x))); }

}  // namespace shiftrt::gpu
