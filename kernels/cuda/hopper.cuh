// SPDX-License-Identifier: Apache-2.0
// What platform.cuh offers on compute capability 9.0 alone. A kernel that uses it has a member `kHopper`, is compiled
// for 9.0a (kernels/CMakeLists.txt) and may have kHopperSharedBytes of shared memory. Tiles are those of tiles.h.
//
//   InitMbarrier() FenceMbarriers()         an mbarrier for so many arrivals; makes its creation known to copies
//   Arrive() ArriveExpecting()              one arrival; the second also announces bytes that copies will bring
//   WaitMbarrier()                          until the phase of this parity is complete
//   CopyBox()                               a box from global memory, zeros outside; its bytes arrive at an mbarrier
//   FenceAsync()                            orders this thread's writes of shared memory before copies and products
//   SyncSome() ArriveSome()                 a named barrier of some warps; the second does not wait
//   GiveRegisters() TakeRegisters()         changes how many registers each thread of a warpgroup has
//   RowsTile() ColumnsTile()                the descriptors of an operand of a product
//   MultiplyTiles() MultiplyRegisters()     wgmma: a product of a warpgroup, which goes on by itself
//   FenceProducts() CommitProducts() WaitProducts()    before products; closes a group of them; waits for groups
//   BlockOfCluster() SyncCluster()          index of the block in its cluster; a barrier of all threads of a cluster
//   StoreToBlock()                          into the shared memory of a block of the cluster; arrives at its mbarrier
//   WaitForCluster()                        until the phase of an mbarrier to which other blocks store is complete
//   ClusterFits()                           whether the device can hold a cluster of a kernel; for the host
//
// A warpgroup is four warps, of which the first is a multiple of four. Its products have 64 rows, sixteen per warp. The
// accumulators of a lane are those of MultiplyAccumulate() for each 8 columns in turn: d[4 n + r] is row
// lane / 4 + 8 (r / 2) of the warp and column 8 n + 2 (lane % 4) + r % 2.
#pragma once

#include "kernels/cuda/platform.cuh"
#include "kernels/cuda/tiles.h"

namespace shiftrt::gpu {

using Mbarrier = uint64_t;

}  // namespace shiftrt::gpu

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/hopper.h"
#else

namespace shiftrt::gpu {

SHIFTRT_DEVICE void InitMbarrier(Shared<Mbarrier> barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}
// By the thread that initialised mbarriers. The other threads of the block still need a barrier.
SHIFTRT_DEVICE void FenceMbarriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
SHIFTRT_DEVICE void Arrive(Shared<Mbarrier> barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
SHIFTRT_DEVICE void ArriveExpecting(Shared<Mbarrier> barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}
#define SHIFTRT_TRY_WAIT(SCOPE) \
  "{\n.reg .pred p;\nmbarrier.try_wait.parity" SCOPE ".shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
// Phases are counted from 0. A wait for the parity of the phase before the current one returns at once, so a wait for
// parity 1 returns at once on a new mbarrier.
SHIFTRT_DEVICE void WaitMbarrier(Shared<Mbarrier> barrier, uint32_t parity) {
  uint32_t complete = 0;
  while (complete == 0) {
    asm volatile(SHIFTRT_TRY_WAIT("") : "=r"(complete) : "r"(SharedAddress(barrier)), "r"(parity) : "memory");
  }
}
// The same for what other blocks of the cluster have stored, which is visible after it.
SHIFTRT_DEVICE void WaitForCluster(Shared<Mbarrier> barrier, uint32_t parity) {
  uint32_t complete = 0;
  while (complete == 0) {
    asm volatile(SHIFTRT_TRY_WAIT(".acquire.cluster")
                 : "=r"(complete)
                 : "r"(SharedAddress(barrier)), "r"(parity)
                 : "memory");
  }
}
#undef SHIFTRT_TRY_WAIT

// By one thread. `to` is a box; (row, column) is the first element in the matrix of `map`, which is an argument of the
// kernel.
template <typename T>
SHIFTRT_DEVICE void CopyBox(Shared<T> to, const BoxMap& map, int row, int column, Shared<Mbarrier> barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          SharedAddress(to)),
      "l"(&map), "r"(column), "r"(row), "r"(SharedAddress(barrier))
      : "memory");
}
SHIFTRT_DEVICE void FenceAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <typename T>
SHIFTRT_DEVICE void ClearShared16(Shared<T> to) {
  *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
}

// Barrier `id` is 1 to 15, and `threads` counts those of both functions. SyncSome() waits for all of them.
SHIFTRT_DEVICE void SyncSome(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
SHIFTRT_DEVICE void ArriveSome(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// By all warps of a warpgroup: from more to kCount registers per thread, and from fewer. The latter waits until other
// warpgroups have left enough of the block's. kCount is a multiple of 8.
template <int kCount>
SHIFTRT_DEVICE void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
SHIFTRT_DEVICE void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <typename T>
SHIFTRT_DEVICE uint64_t RowsTile(Shared<T> at) {
  return DescribeRows(SharedAddress(at));
}
template <typename T>
SHIFTRT_DEVICE uint64_t ColumnsTile(Shared<T> at, int box_elements) {
  return DescribeColumns(SharedAddress(at), box_elements * static_cast<int>(sizeof(T)));
}

// Keeps the compiler from moving an access of these registers over the place of the call. It does not know that a
// product writes its accumulators, and reads an operand in registers, until it is waited for.
template <int kCount>
SHIFTRT_DEVICE void Pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
SHIFTRT_DEVICE void Pin(uint32_t (&values)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) asm volatile("" : "+r"(values[i][r])::"memory");
}

// Must stand between the last access of the accumulators and of operands in registers, which it names, and the next
// product with them.
template <typename... Registers>
SHIFTRT_DEVICE void FenceProducts(Registers&... registers) {
  (Pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
SHIFTRT_DEVICE void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when all but the latest kPending groups of the warp are complete. The products with `registers` are among the
// complete ones.
template <int kPending, typename... Registers>
SHIFTRT_DEVICE void WaitProducts(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (Pin(registers), ...);
}

// The accumulators as operands of an instruction, in eights, and their places in its text.
#define SHIFTRT_D8(d, i)                                                                                              \
  "+f"((d)[(i)]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), \
      "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define SHIFTRT_D32(d, i) SHIFTRT_D8(d, i), SHIFTRT_D8(d, (i) + 8), SHIFTRT_D8(d, (i) + 16), SHIFTRT_D8(d, (i) + 24)
#define SHIFTRT_PLACES_32                                                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define SHIFTRT_PLACES_64                                                                                       \
  SHIFTRT_PLACES_32                                                                                             \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// After the descriptors come whether the accumulators are added to, factors of 1 for both operands, and which operands
// in shared memory are columns ("transposed").
#define SHIFTRT_WGMMA_TILES(N, TYPE, PLACES, A, B, ADD)                                                        \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE \
  " {" PLACES "}, " A ", " B ", p, 1, 1, 0, 0;\n}\n"
#define SHIFTRT_WGMMA_REGISTERS(N, TYPE, PLACES, A, B) \
  "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" PLACES "}, {" A "}, " B ", 1, 1, 1, 1;\n"

// d (64 x 128) = a b', or += if `add`: the rows of `a` and of `b` are rows of tiles (RowsTile), and the product is over
// 16 of their columns.
template <typename T>
SHIFTRT_DEVICE void MultiplyTiles(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  if constexpr (DTypeOf<T>::value == DType::kBFloat16) {
    asm volatile(SHIFTRT_WGMMA_TILES("128", "bf16", SHIFTRT_PLACES_64, "%64", "%65", "%66")
                 : SHIFTRT_D32(d, 0), SHIFTRT_D32(d, 32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  } else {
    asm volatile(SHIFTRT_WGMMA_TILES("128", "f16", SHIFTRT_PLACES_64, "%64", "%65", "%66")
                 : SHIFTRT_D32(d, 0), SHIFTRT_D32(d, 32)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
}

// d (64 x N) += a b with N = 64 or 128: `a` is in registers, with each warp's sixteen rows laid out as for
// MultiplyAccumulate(); the rows of `b` are 16 rows of a tile (ColumnsTile). `a` must stay as it is until the product
// is waited for.
template <typename T>
SHIFTRT_DEVICE void MultiplyRegisters(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (DTypeOf<T>::value == DType::kBFloat16) {
    asm volatile(SHIFTRT_WGMMA_REGISTERS("128", "bf16", SHIFTRT_PLACES_64, "%64, %65, %66, %67", "%68")
                 : SHIFTRT_D32(d, 0), SHIFTRT_D32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(SHIFTRT_WGMMA_REGISTERS("128", "f16", SHIFTRT_PLACES_64, "%64, %65, %66, %67", "%68")
                 : SHIFTRT_D32(d, 0), SHIFTRT_D32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
template <typename T>
SHIFTRT_DEVICE void MultiplyRegisters(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (DTypeOf<T>::value == DType::kBFloat16) {
    asm volatile(SHIFTRT_WGMMA_REGISTERS("64", "bf16", SHIFTRT_PLACES_32, "%32, %33, %34, %35", "%36")
                 : SHIFTRT_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(SHIFTRT_WGMMA_REGISTERS("64", "f16", SHIFTRT_PLACES_32, "%32, %33, %34, %35", "%36")
                 : SHIFTRT_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

// The blocks of a cluster (`kClusterBlocks`) are resident together. After the first barrier, all of them have started.
SHIFTRT_DEVICE int BlockOfCluster() {
  int rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// After it, all blocks of the cluster see what any of them wrote to shared memory before it.
SHIFTRT_DEVICE void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Stores to the place that `at` is in this block's memory; its 4 bytes arrive at the mbarrier that stands there at the
// place of `barrier`, which WaitForCluster() waits for. A barrier of the cluster must come before the first store and
// after the mbarriers were made. A block may end before its stores arrive, but not before those of others arrive there.
SHIFTRT_DEVICE void StoreToBlock(Shared<float> at, int block, float value, Shared<Mbarrier> barrier) {
  asm volatile(
      "{\n"
      ".reg .b32 there, arrives;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 arrives, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [arrives];\n"
      "}\n" ::"r"(SharedAddress(at)),
      "r"(SharedAddress(barrier)), "r"(block), "f"(value)
      : "memory");
}

// True if the stream's device can hold a cluster of this kernel whose blocks use all shared memory. The query is for a
// launch that does not overlap, because the attribute of overlap does not affect the room.
template <typename K>
bool AskWhetherClusterFits(Stream stream) {
  UseDeviceOf(stream);
  AskForResources<K>(stream);
  const LaunchConfig<K> config(stream, {.x = ClusterBlocks<K>(), .shared_bytes = MostSharedBytes<K>()}, false);
  int clusters = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&clusters, Entry<K>, config.get());
  if (status == cudaSuccess) return clusters > 0;
  cudaGetLastError();  // the error is reported here and must not surface again
  ReportNoCluster(status, __PRETTY_FUNCTION__);
  return false;
}
// The same, asked once per kernel and device, because callers ask before every launch.
template <typename K>
bool ClusterFits(Stream stream) {
  static std::atomic<uint64_t> asked = 0, fits = 0;
  const uint64_t bit = uint64_t{1} << (stream.device % 64);
  if (stream.device >= 64) return AskWhetherClusterFits<K>(stream);
  if ((asked.load() & bit) == 0) {
    if (AskWhetherClusterFits<K>(stream)) fits.fetch_or(bit);
    asked.fetch_or(bit);
  }
  return (fits.load() & bit) != 0;
}

#undef SHIFTRT_WGMMA_REGISTERS
#undef SHIFTRT_WGMMA_TILES
#undef SHIFTRT_PLACES_64
#undef SHIFTRT_PLACES_32
#undef SHIFTRT_D32
#undef SHIFTRT_D8

}  // namespace shiftrt::gpu

#endif  // SHIFTRT_EMULATED
