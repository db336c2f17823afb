// SPDX-License-Identifier: Apache-2.0
// Tests the emulator's clusters of blocks, and kernels that wait for earlier launches themselves. As in
// machine_test.cc, each kernel is correct or has one error, which must be caught.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/hopper.cuh"
#include "kernels/emulated/machine.h"
#include "kernels/emulated/memory.h"

namespace shiftrt::gpu {
namespace {

using emu::Array;

template <typename Body>
void ExpectCaught(const std::string& what, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "not caught: " << what;
  } catch (const emu::KernelError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

enum class Fault { kNone, kStoresAtOnce, kNoWait, kReadsAtOnce, kLocalWait, kTooFew, kEndsEarly, kRank, kDiverges };

// out[block] = 1 + 2 + 3 + 4 over the blocks of its cluster, plus 100 times the place of the cluster.
template <Fault kFault>
struct SumOfCluster {
  static constexpr bool kHopper = true;
  static constexpr int kClusterBlocks = 4, kThreads = 64;
  static constexpr int kSharedBytes = SharedBytes<float>(kClusterBlocks) + SharedBytes<Mbarrier>(1);
  struct Args {
    float* out;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> shares = arena.Take<float>(kClusterBlocks);
    const Shared<Mbarrier> all = arena.Take<Mbarrier>(1);
    if (Thread() == 0) {
      InitMbarrier(all, 1);
      FenceMbarriers();
      ArriveExpecting(all, (kFault == Fault::kTooFew ? kClusterBlocks - 1 : kClusterBlocks) * 4);
    }
    if (kFault == Fault::kDiverges && BlockOfCluster() == 1) return;
    if (kFault != Fault::kStoresAtOnce) SyncCluster();
    if (kFault == Fault::kEndsEarly && BlockOfCluster() == 3) return;
    const int to = kFault == Fault::kRank ? Thread() + 1 : Thread();
    if (Thread() < kClusterBlocks)
      StoreToBlock(shares + BlockOfCluster(), to, static_cast<float>(1 + BlockOfCluster()), all);
    if (kFault == Fault::kReadsAtOnce) {
      args.out[Block().x] = shares[BlockOfCluster()];
    }
    if (kFault == Fault::kLocalWait) {
      WaitMbarrier(all, 0);
    } else if (kFault != Fault::kNoWait) {
      WaitForCluster(all, 0);
    }
    if (kFault == Fault::kReadsAtOnce || Thread() != 0) return;
    float sum = static_cast<float>(Block().x / kClusterBlocks * 100);
    for (int block = 0; block < kClusterBlocks; ++block) sum += shares[block];
    args.out[Block().x] = sum;
  }
};

template <Fault kFault>
std::vector<float> RunCluster(int blocks = 8) {
  const Array<float> out(8);
  using Kernel = SumOfCluster<kFault>;
  Launch<Kernel>({}, {.x = blocks, .shared_bytes = Kernel::kSharedBytes}, {out.data()});
  return {out.span().begin(), out.span().end()};
}

TEST(Cluster, BlocksExchangeSharedMemory) {
  const std::vector<float> out = RunCluster<Fault::kNone>();
  for (int block = 0; block < 8; ++block) EXPECT_EQ(out[block], block < 4 ? 10 : 110);
}

TEST(Cluster, StoresThatAreNotWaitedForAreCaught) {
  ExpectCaught("a store to a block of the cluster that may not have started [cluster_test.cc:",
               [] { RunCluster<Fault::kStoresAtOnce>(); });
  ExpectCaught("a store to a block of the cluster that", [] { RunCluster<Fault::kNoWait>(); });
  ExpectCaught("stores of other blocks are not visible after WaitMbarrier [cluster_test.cc:",
               [] { RunCluster<Fault::kLocalWait>(); });
  ExpectCaught("a store arrives at an mbarrier that expects 0 bytes [cluster_test.cc:",
               [] { RunCluster<Fault::kTooFew>(); });
  for (const float value : RunCluster<Fault::kReadsAtOnce>()) EXPECT_TRUE(std::isnan(value));
}

TEST(Cluster, WrongBlocksAreCaught) {
  ExpectCaught("which misses 0 arrivals and 4 bytes", [] { RunCluster<Fault::kEndsEarly>(); });
  ExpectCaught("a store to block 4 of a cluster of 4", [] { RunCluster<Fault::kRank>(); });
  ExpectCaught("waits at a barrier of the cluster [cluster_test.cc:", [] { RunCluster<Fault::kDiverges>(); });
  ExpectCaught("a grid of whole clusters", [] { RunCluster<Fault::kNone>(6); });
}

struct Fill {
  static constexpr int kThreads = 32;
  struct Args {
    float* out;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) { args.out[Thread()] = static_cast<float>(Thread() + 1); }
};

enum class Early { kNothing, kReads, kCopies, kNeverWaits, kOnlySomeWait };

// out = in + weights. The weights are read before the wait for the launch that fills `in`.
template <Early kEarly>
struct AddAfterWait {
  static constexpr bool kWaits = true;
  static constexpr int kThreads = 32;
  static constexpr int kSharedBytes = SharedBytes<float>(kThreads);
  struct Args {
    const float *in, *weights;
    float* out;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> kept = arena.Take<float>(kThreads);
    if (Thread() % 4 == 0)
      CopyAsync16(kept + Thread(), (kEarly == Early::kCopies ? args.in : args.weights) + Thread(), true);
    CopyAsyncCommit();
    const float early = kEarly == Early::kReads ? args.in[Thread()] : 0;
    if (kEarly != Early::kNeverWaits && (kEarly != Early::kOnlySomeWait || Thread() != 7)) WaitForEarlier();
    CopyAsyncWait<0>();
    SyncThreads();
    args.out[Thread()] = (kEarly == Early::kReads ? early : args.in[Thread()]) + kept[Thread()];
  }
};

template <Early kEarly>
std::vector<float> RunAfterFill(bool finished) {
  const Array<float> in(32), weights(std::vector<float>(32, 0.5f));
  const Array<float> out(32);
  Launch<Fill>({}, {}, {in.data()});
  if (finished) emu::Finish();
  Launch<AddAfterWait<kEarly>>({}, {.shared_bytes = AddAfterWait<kEarly>::kSharedBytes},
                               {in.data(), weights.data(), out.data()});
  return {out.span().begin(), out.span().end()};
}

TEST(EarlyStart, WhatNoLaunchWritesMayBeReadBeforeTheWait) {
  const std::vector<float> out = RunAfterFill<Early::kNothing>(false);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], static_cast<float>(i) + 1.5f);
}

TEST(EarlyStart, ReadingWhatALaunchMayStillWriteIsCaught) {
  for (const float value : RunAfterFill<Early::kReads>(false)) EXPECT_TRUE(std::isnan(value));
  ExpectCaught("a copy of what an earlier launch may still write, before the wait for it [cluster_test.cc:",
               [] { RunAfterFill<Early::kCopies>(false); });
  const std::vector<float> finished = RunAfterFill<Early::kReads>(true);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(finished[i], static_cast<float>(i) + 1.5f);
}

TEST(EarlyStart, EveryThreadWaits) {
  ExpectCaught("exits without having waited for earlier launches", [] { RunAfterFill<Early::kNeverWaits>(false); });
  ExpectCaught("waits for earlier launches [cluster_test.cc:", [] { RunAfterFill<Early::kOnlySomeWait>(false); });
}

// Reads 8 floats per lane before it allows the next launch, and 24 after.
template <bool kSaysSo>
struct AllowsNext {
  static constexpr bool kAllowsNext = kSaysSo;
  static constexpr int kThreads = 32;
  struct Args {
    const float* in;
    float* out;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      if (i == 1) AllowNext();
      float values[8];
      Widen8(LoadOnce8(args.in + 8 * (32 * i + Lane())), values);
      sum += values[0];
    }
    args.out[Lane()] = sum;
  }
};

TEST(EarlyStart, BytesBeforeTheNextLaunchAreCounted) {
  const Array<float> in(std::vector<float>(1024, 1.0f)), out(32);
  const emu::StreamedBytes before = emu::Streamed();
  Launch<AllowsNext<true>>({}, {}, {in.data(), out.data()});
  EXPECT_EQ(emu::Streamed().all - before.all, 4096);
  EXPECT_EQ(emu::Streamed().before_next - before.before_next, 1024);
  ExpectCaught("a kernel without kAllowsNext", [&] { Launch<AllowsNext<false>>({}, {}, {in.data(), out.data()}); });
}

}  // namespace
}  // namespace shiftrt::gpu
