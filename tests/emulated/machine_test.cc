// SPDX-License-Identifier: Apache-2.0
// Tests the emulator. Each kernel here is either correct or has one typical error of GPU programming. Every error must
// be caught and reported with its line.
#include "kernels/emulated/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/cuda/platform.cuh"
#include "kernels/emulated/memory.h"

namespace shiftrt::gpu {
namespace {

using emu::Array;
using emu::KernelError;

enum class Mutation {
  kNone,
  kNoBarrier,
  kWrongLane,
  kOffByOne,
  kNoWait,
  kNoBarrierAfterWait,
  kDivergentBarrier,
  kExitedLane,
  kLaneOutsideMask,
  kMissingLane,
  kMisaligned,
  kNeverWaited,
  kUnwritten,
};

// out[i] = (sum of `in` over the block) + (`in` reversed within the block): a reduction and an exchange in shared
// memory.
template <Mutation kMutation>
struct ReduceAndReverse {
  static constexpr int kThreads = 64;
  struct Args {
    const float* in;
    float* out;
  };
  static constexpr int kSharedBytes = SharedBytes<float>(kThreads) + SharedBytes<float>(2);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> tile = arena.Take<float>(kThreads);
    const Shared<float> sums = arena.Take<float>(2);
    const int i = Thread(), at = Block().x * kThreads + i;
    const float mine = args.in[at];
    if (kMutation != Mutation::kUnwritten || i != 7) tile[i] = mine;
    if (kMutation == Mutation::kExitedLane && i == 5) return;
    if (kMutation == Mutation::kMissingLane && i == 5) SyncThreads();
    float sum = mine;
    for (int step = 16; step > 0; step /= 2) {
      if (kMutation == Mutation::kWrongLane) {
        sum += Shuffle(sum, (Lane() + step + 1) % 32 | (step == 16 ? 1 : 0));
      } else if (kMutation == Mutation::kLaneOutsideMask && i < 16) {
        sum += ShuffleXor(sum, step, 0x0000ffffu);
      } else {
        sum += ShuffleXor(sum, step, kMutation == Mutation::kLaneOutsideMask && i < 32 ? 0xffff0000u : kFullWarp);
      }
    }
    if (Lane() == 0) sums[Warp()] = sum;
    if (kMutation == Mutation::kDivergentBarrier && i < 3) {
      SyncThreads();
    } else if (kMutation != Mutation::kNoBarrier) {
      SyncThreads();
    }
    args.out[at] = sums[0] + sums[1] + tile[kThreads - (kMutation == Mutation::kOffByOne ? 0 : 1) - i];
  }
};

// out = in. The 16 bytes of each thread are written by its neighbour, after cp.async in two groups.
template <Mutation kMutation>
struct CopyThrough {
  static constexpr int kThreads = 32;
  struct Args {
    const float* in;  // (2, 128)
    float* out;
  };
  static constexpr int kSharedBytes = 2 * SharedBytes<float>(4 * kThreads);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> first = arena.Take<float>(4 * kThreads), second = arena.Take<float>(4 * kThreads);
    const int mine = 4 * Thread(), other = 4 * (kThreads - 1 - Thread());
    CopyAsync16(first + mine + (kMutation == Mutation::kMisaligned ? 1 : 0), args.in + mine, true);
    CopyAsyncCommit();
    CopyAsync16(second + mine, args.in + 4 * kThreads + mine, Thread() != 3);
    CopyAsyncCommit();
    if (kMutation != Mutation::kNoWait) CopyAsyncWait<1>();
    if (kMutation != Mutation::kNoBarrierAfterWait) SyncThreads();
    for (int j = 0; j < 4; ++j) args.out[other + j] = first[other + j];
    if (kMutation != Mutation::kNeverWaited) CopyAsyncWait<0>();
    SyncThreads();
    for (int j = 0; j < 4; ++j) args.out[4 * kThreads + other + j] = second[other + j];
  }
};

std::vector<float> Ramp(int count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

template <template <Mutation> class Kernel, Mutation kMutation>
std::vector<float> Ran(int blocks, int count) {
  const Array<float> in(Ramp(count)), out(count);
  Launch<Kernel<kMutation>>({}, {.x = blocks, .shared_bytes = Kernel<kMutation>::kSharedBytes},
                            {in.data(), out.data()});
  return {out.span().begin(), out.span().end()};
}

// The message of the error, or "" if the kernel ran but its result (which may be NaN) differs from that of the correct
// kernel.
template <template <Mutation> class Kernel, Mutation kMutation>
std::string Caught(int blocks, int count) {
  try {
    const auto result = Ran<Kernel, kMutation>(blocks, count), expected = Ran<Kernel, Mutation::kNone>(blocks, count);
    EXPECT_NE(result, expected) << "the mutation went unnoticed";
    return "";
  } catch (const KernelError& error) {
    return error.what();
  }
}
template <Mutation kMutation>
std::string CaughtReduce() {
  return Caught<ReduceAndReverse, kMutation>(2, 128);
}
template <Mutation kMutation>
std::string CaughtCopy() {
  return Caught<CopyThrough, kMutation>(1, 256);
}

testing::AssertionResult Says(const std::string& error, const std::string& what) {
  if (error.find(what) != error.npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << error << "\" does not say \"" << what << "\"";
}

TEST(Machine, RightKernelsGiveTheRightResult) {
  const auto reduced = Ran<ReduceAndReverse, Mutation::kNone>(2, 128);
  for (int i = 0; i < 128; ++i) {
    const int block = i / 64;
    const float sum = block == 0 ? 64 * 65 / 2 : 128 * 129 / 2 - 64 * 65 / 2;
    EXPECT_EQ(reduced[i], sum + static_cast<float>(block * 64 + 64 - i % 64));
  }
  const auto copied = Ran<CopyThrough, Mutation::kNone>(1, 256), ramp = Ramp(256);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(copied[i], i >= 140 && i < 144 ? 0.0f : ramp[i]);
}

TEST(Machine, ARemovedBarrierIsCaught) {
  CaughtReduce<Mutation::kNoBarrier>();
  EXPECT_TRUE(Says(CaughtCopy<Mutation::kNoBarrierAfterWait>(), "the order of threads changes"));
}

TEST(Machine, AWrongLaneInAShuffleIsCaught) {
  CaughtReduce<Mutation::kWrongLane>();
  EXPECT_TRUE(Says(CaughtReduce<Mutation::kLaneOutsideMask>(), "shuffles from lane 16, which does not take part"));
}

TEST(Machine, AnOffByOneSharedIndexIsCaught) {
  EXPECT_TRUE(Says(CaughtReduce<Mutation::kOffByOne>(), "element 64 of a shared array of 64 [machine_test.cc:"));
}

TEST(Machine, AMissingCopyWaitIsCaught) {
  CaughtCopy<Mutation::kNoWait>();
  EXPECT_TRUE(Says(CaughtCopy<Mutation::kNeverWaited>(), "never waited for [machine_test.cc:"));
}

TEST(Machine, DivergenceIsReportedWithItsLines) {
  EXPECT_TRUE(Says(CaughtReduce<Mutation::kDivergentBarrier>(), "divergent: thread 0 waits at a barrier"));
  EXPECT_TRUE(Says(CaughtReduce<Mutation::kExitedLane>(), "the mask names lane 5, which has exited"));
  EXPECT_TRUE(Says(CaughtReduce<Mutation::kMissingLane>(), "thread 5 waits at a barrier [machine_test.cc:"));
}

TEST(Machine, MisalignedCopiesAreCaught) {
  EXPECT_TRUE(Says(CaughtCopy<Mutation::kMisaligned>(), "misaligned [machine_test.cc:"));
}

TEST(Machine, UnwrittenSharedMemoryIsNaN) {
  const auto out = Ran<ReduceAndReverse, Mutation::kUnwritten>(1, 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(out[i]), i == 63 - 7);
}

TEST(Machine, SharedMemoryMustBeWhatWasAskedFor) {
  const Array<float> in(Ramp(64)), out(64);
  using Kernel = ReduceAndReverse<Mutation::kNone>;
  for (int wrong : {-16, 16}) {
    EXPECT_THROW(Launch<Kernel>({}, {.shared_bytes = Kernel::kSharedBytes + wrong}, {in.data(), out.data()}),
                 KernelError);
  }
}

TEST(Machine, ALaunchDoesNotReachTheMemoryOfAnotherDevice) {
  const Array<float> in(Ramp(64)), out(64);
  using Kernel = ReduceAndReverse<Mutation::kNone>;
  const auto launch = [&](int device) {
    Launch<Kernel>({nullptr, device}, {.shared_bytes = Kernel::kSharedBytes}, {in.data() + 1, out.data()});
  };
  try {
    launch(1);
    ADD_FAILURE() << "not caught";
  } catch (const KernelError& error) {
    EXPECT_TRUE(Says(error.what(), "on device 1 with memory of device 0")) << error.what();
  }
}

// Block b writes out[b]. After a barrier of the whole grid, every block reads all elements.
template <bool kBarrier>
struct ExchangeBetweenBlocks {
  static constexpr int kThreads = 32;
  struct Args {
    float* out;
    float* sums;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    if (Thread() == 0) args.out[Block().x] = static_cast<float>(Block().x + 1);
    if (kBarrier) SyncGrid();
    float sum = 0;
    for (int b = 0; b < GridBlocks().x; ++b) sum += args.out[b];
    if (Thread() == 0) args.sums[Block().x] = sum;
  }
};

TEST(Machine, CooperativeGridsWaitForEachOther) {
  const Array<float> out(5), sums(5);
  Launch<ExchangeBetweenBlocks<true>>({}, {.x = 5, .cooperative = true}, {out.data(), sums.data()});
  for (float sum : sums.span()) EXPECT_EQ(sum, 15);
  EXPECT_THROW(Launch<ExchangeBetweenBlocks<true>>({}, {.x = 5}, {out.data(), sums.data()}), KernelError);
  const Array<float> unwritten(5);
  EXPECT_THROW(Launch<ExchangeBetweenBlocks<false>>({}, {.x = 5, .cooperative = true}, {unwritten.data(), sums.data()}),
               KernelError);
}

// Every block leaves a number. The last one to arrive adds them up; or the first of the grid does, which is wrong, or a
// block that thinks one is missing.
enum class Gatherer { kLast, kFirst, kOneTooFew };
template <Gatherer kGatherer>
struct GatherFromBlocks {
  static constexpr int kThreads = 64;
  struct Args {
    float *shares, *sums;
    uint32_t* arrivals;
  };
  static constexpr int kSharedBytes = SharedBytes<uint32_t>(1);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<uint32_t> flag = arena.Take<uint32_t>(1);
    args.shares[Block().x * kThreads + Thread()] = static_cast<float>(Block().x + 1);
    const uint32_t blocks = GridBlocks().x - (kGatherer == Gatherer::kOneTooFew ? 1 : 0);
    const bool last = LastToArrive(args.arrivals, blocks, flag);
    if (kGatherer == Gatherer::kFirst ? Block().x != 0 : !last) return;
    float sum = 0;
    for (int b = 0; b < GridBlocks().x; ++b) sum += args.shares[b * kThreads + Thread()];
    args.sums[Thread()] = sum;
  }
};

TEST(Machine, TheLastBlockToArriveSeesWhatAllLeft) {
  using Right = GatherFromBlocks<Gatherer::kLast>;
  const Array<float> shares(5 * 64), sums(64);
  const Array<uint32_t> arrivals(1);
  arrivals[0] = 0;
  const Grid grid{.x = 5, .shared_bytes = Right::kSharedBytes};
  for (int launch = 0; launch < 2; ++launch) {
    Launch<Right>({}, grid, {shares.data(), sums.data(), arrivals.data()});
    for (const float sum : sums.span()) EXPECT_EQ(sum, 15);
    EXPECT_EQ(arrivals[0], 0u);
  }
  const Array<float> unwritten(5 * 64);
  EXPECT_THROW(Launch<GatherFromBlocks<Gatherer::kFirst>>({}, grid, {unwritten.data(), sums.data(), arrivals.data()}),
               KernelError);
  EXPECT_THROW(Launch<GatherFromBlocks<Gatherer::kOneTooFew>>({}, grid, {shares.data(), sums.data(), arrivals.data()}),
               KernelError);
  arrivals[0] = 0;
  arrivals[0] = 3;
  EXPECT_THROW(Launch<Right>({}, grid, {shares.data(), sums.data(), arrivals.data()}), KernelError);
}

// out (16, 8) = a (16, 16) b (16, 8). a is loaded by ldmatrix, and b, stored as (16, 8), by its transposing form.
template <typename T>
struct OneProduct {
  static constexpr int kThreads = 32;
  struct Args {
    const T* a;
    const T* b;
    float* out;
  };
  static constexpr int kSharedBytes = SharedBytes<T>(256) + SharedBytes<T>(256);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<T> a = arena.Take<T>(256), b = arena.Take<T>(256);  // two copies of b, side by side
    for (int i = Thread(); i < 256; i += kThreads) {
      a[i] = args.a[i];
      b[i] = args.b[i / 16 * 8 + i % 8];
    }
    SyncThreads();
    uint32_t a_fragment[4], b_fragment[4];
    const int row = Lane() % 16, col = Lane() / 16 * 8;
    LoadMatrices(a_fragment, a + row * 16 + col);
    LoadMatricesTransposed(b_fragment, b + row * 16 + col);
    float d[4] = {};
    MultiplyAccumulate<T>(d, a_fragment, b_fragment[0], b_fragment[1]);
    for (int r = 0; r < 4; ++r) args.out[(Lane() / 4 + 8 * (r / 2)) * 8 + 2 * (Lane() % 4) + r % 2] = d[r];
  }
};

template <typename T>
void ExpectProduct() {
  const Array<T> a(256), b(128);
  const Array<float> out(128);
  for (int i = 0; i < 256; ++i) a[i] = T(static_cast<float>(i % 13 - 6));
  for (int i = 0; i < 128; ++i) b[i] = T(static_cast<float>(i % 7 - 3) * 0.25f);
  Launch<OneProduct<T>>({}, {.shared_bytes = OneProduct<T>::kSharedBytes}, {a.data(), b.data(), out.data()});
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += static_cast<float>(a[i * 16 + k]) * static_cast<float>(b[k * 8 + j]);
      EXPECT_EQ(out[i * 8 + j], sum) << i << " " << j;
    }
}

TEST(Machine, MatrixFragmentsFollowPtx) {
  ExpectProduct<BFloat16>();
  ExpectProduct<Float16>();
}

}  // namespace
}  // namespace shiftrt::gpu
