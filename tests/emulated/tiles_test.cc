// SPDX-License-Identifier: Apache-2.0
// Tests how tiles are described to compute capability 9.0, and the emulator's part of hopper.cuh: a correct kernel with
// copies of boxes and products of a warpgroup, and the same kernel with typical errors, each of which must be caught
// and reported with its line.
#include "kernels/cuda/tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/hopper.cuh"
#include "kernels/emulated/memory.h"

namespace shiftrt::gpu {
namespace {

using emu::Array;
using emu::KernelError;

// The fields by the tables "Matrix descriptor" of the PTX manual; CUTLASS (mma_sm90_desc.hpp) has the same bits.
TEST(Tiles, DescriptorsHaveThePublishedBits) {
  // Address 0x400 >> 4, leading offset 1, stride 1024 >> 4, swizzle 1 in bits 62-63.
  EXPECT_EQ(DescribeRows(0x400), 0x4000'0040'0001'0040u);
  // Boxes of 128 rows: leading offset 16384 >> 4.
  EXPECT_EQ(DescribeColumns(0x4c00, 16384), 0x4000'0040'0400'04c0u);
  // 14 bits hold every address of 227 KiB, and no field reaches into another.
  EXPECT_EQ(DescribeRows(kHopperSharedBytes - 16) & 0xffff, (kHopperSharedBytes - 16u) >> 4);
  EXPECT_EQ(DescribeMatrix(0x3ffff, 0x3ffff, 0x3ffff), 0x4000'3fff'3fff'3fffu);
  // A step of 16 columns is 32 bytes further; one of 16 rows two times eight rows.
  EXPECT_EQ(DescribeRows(0x420) - DescribeRows(0x400), 2u);
  EXPECT_EQ(DescribeColumns(0x800, 8192) - DescribeColumns(0, 8192), 128u);
}

// The pattern of CU_TENSOR_MAP_SWIZZLE_128B: the places of the eight pieces of eight rows.
TEST(Tiles, TheSwizzleExchangesPiecesWithinARow) {
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t byte = 0; byte < 128; ++byte)
      EXPECT_EQ(Swizzled(128 * row + byte), 128 * row + 16 * (byte / 16 ^ row % 8) + byte % 16);
}

TEST(Tiles, BoxesAreDescribedToTheDriverInnermostFirst) {
  alignas(16) const BFloat16 data[64] = {};
  const ConstDeviceArray matrix{data, DType::kBFloat16};
  const BoxEncoding encoding = EncodeBoxes(matrix, 300, 1024, 128);
  EXPECT_EQ(encoding.data, data);
  EXPECT_EQ(encoding.dtype, DType::kBFloat16);
  EXPECT_EQ(encoding.sizes[0], 1024u);
  EXPECT_EQ(encoding.sizes[1], 300u);
  EXPECT_EQ(encoding.row_bytes, 2048u);
  EXPECT_EQ(encoding.box[0] * 2, 128u);  // bytes of the swizzle
  EXPECT_EQ(encoding.box[1], 128u);
  EXPECT_THROW(EncodeBoxes({data, DType::kFloat32}, 300, 1024, 128), std::runtime_error);
  EXPECT_THROW(EncodeBoxes({data + 1, DType::kBFloat16}, 300, 1024, 128), std::runtime_error);
  EXPECT_THROW(EncodeBoxes(matrix, 0, 1024, 128), std::runtime_error);
  EXPECT_THROW(EncodeBoxes(matrix, 300, 100, 128), std::runtime_error);
  EXPECT_THROW(EncodeBoxes(matrix, 300, 1024, 257), std::runtime_error);
}

enum class TileFault {
  kNone,
  kNoWaitForTile,
  kReadsUnarrived,
  kWrongParity,
  kNoWaitForFree,
  kEarlyRelease,
  kNoProductWait,
  kWaitTooShort,
  kAccumulatorsTouched,
  kNoProductFence,
  kTouchedAfterFence,
  kNoCommit,
  kOperandTouched,
  kOperandAfterFence,
  kNoAsyncFence,
  kTooFewBytes,
  kTooManyBytes,
  kWrongBarrier,
  kMisalignedBox,
  kMisalignedOperand,
  kNoMbarrierFence,
  kNoInit,
  kArrivesTwice,
  kEveryLaneReleases,
  kNobodyWaits,
  kWarpsDiffer,
  kOneWarpLess,
  kNamedLeft,
  kNamedCount,
  kReadsBox,
};

// out (64, 64) = sum over tiles t of (a b_t') b_t with a (64, 64) and tiles of 128 rows of b (rows, 64), of which only
// `valid` rows count. A warp copies the tiles into one place after the other use of it, and clears the rows that do not
// count; a warpgroup multiplies, with the rounded first product as the operand of the second. Last, the warp that
// copies receives a number from each warp of the warpgroup and adds them up.
template <typename T, TileFault kTileFault>
struct MultiplyTwice {
  static constexpr bool kHopper = true;
  static constexpr int kThreads = 5 * kWarpSize, kRows = 128, kA = 64 * kBoxColumns, kB = kRows * kBoxColumns;
  struct Args {
    BoxMap a, b;
    int valid;
    float* out;
    float* sum;
  };
  static constexpr int kShared =
      SharedBytes<T>(kA) + SharedBytes<T>(kB) + SharedBytes<T>(kB) + SharedBytes<float>(4) + SharedBytes<Mbarrier>(4);

  static SHIFTRT_DEVICE void Copy(const Args& args, Shared<T> a, Shared<T> b, Shared<Mbarrier> barriers) {
    const Shared<Mbarrier> full = barriers, free = barriers + 1, landed = barriers + 2;
    constexpr int kBytes = 2 * kB + (kTileFault == TileFault::kTooFewBytes    ? -16
                                     : kTileFault == TileFault::kTooManyBytes ? 16
                                                                              : 0);
    for (int tile = 0; tile * kRows < args.valid; ++tile) {
      const bool last = args.valid < (tile + 1) * kRows;
      if (kTileFault != TileFault::kNoWaitForFree) WaitMbarrier(free, tile % 2 ^ 1);
      const Shared<Mbarrier> arrives = last ? landed : full;
      if (Lane() == 0) {
        ArriveExpecting(arrives, kBytes + (tile == 0 ? 2 * kA : 0));
        if (kTileFault == TileFault::kArrivesTwice) Arrive(arrives);
        if (tile == 0) CopyBox(a, args.a, 0, 0, kTileFault == TileFault::kWrongBarrier ? landed : arrives);
        CopyBox(kTileFault == TileFault::kMisalignedBox ? b + kBoxColumns : b, args.b, tile * kRows, 0, arrives);
      }
      if (kTileFault == TileFault::kReadsUnarrived) SyncSome(2, kThreads);
      if (!last) continue;
      WaitMbarrier(landed, 0);
      for (int i = (args.valid - tile * kRows) * kBoxColumns + 8 * Lane(); i < kB; i += 8 * kWarpSize)
        ClearShared16(b + i);
      if (kTileFault != TileFault::kNoAsyncFence) FenceAsync();
      SyncWarp();
      if (Lane() == 0) Arrive(full);
      if (kTileFault == TileFault::kNobodyWaits && Lane() == 0) {
        ArriveExpecting(landed, 2 * kA);
        CopyBox(b + kB, args.a, 0, 0, landed);
      }
    }
  }

  static SHIFTRT_DEVICE void Multiply(const Args& args, Shared<T> a, Shared<T> b, Shared<Mbarrier> barriers) {
    const Shared<Mbarrier> full = barriers, free = barriers + 1;
    float scores[64], out[32];
    uint32_t rounded[8][4];
    for (float& x : out) x = 0;
    for (int tile = 0; tile * kRows < args.valid; ++tile) {
      if (kTileFault == TileFault::kReadsUnarrived) SyncSome(2, kThreads);
      if (kTileFault != TileFault::kNoWaitForTile && kTileFault != TileFault::kReadsUnarrived)
        WaitMbarrier(full, kTileFault == TileFault::kWrongParity ? tile % 2 ^ 1 : tile % 2);
      if (kTileFault == TileFault::kReadsBox && tile == 1) out[0] += Widen(b[0]) * 0;
      if (kTileFault != TileFault::kNoProductFence) FenceProducts(scores);
      if (kTileFault == TileFault::kTouchedAfterFence && tile == 0) scores[0] = 1;
      for (int k = 0; k < kBoxColumns; k += 16) {
        const int row = kTileFault == TileFault::kMisalignedOperand ? 4 : 0;
        const bool other = kTileFault == TileFault::kWarpsDiffer && Warp() == 2;
        MultiplyTiles<T>(scores, RowsTile(a + k), RowsTile(b + row * kBoxColumns + (other ? 0 : k)),
                         k > 0 || (kTileFault == TileFault::kTouchedAfterFence && tile == 0));
      }
      if (kTileFault == TileFault::kAccumulatorsTouched) scores[5] = 0;
      if (kTileFault != TileFault::kNoCommit) CommitProducts();
      WaitProducts<0>(scores);
      for (int n = 0; n < 8; ++n)
        for (int r = 0; r < 4; ++r) rounded[n][r] = Pack2<T>(scores[8 * n + 2 * r], scores[8 * n + 2 * r + 1]);
      FenceProducts(rounded, out);
      if (kTileFault == TileFault::kOperandAfterFence) rounded[3][1] ^= 1;
      for (int n = 0; n < 8; ++n) {
        if (kTileFault == TileFault::kOneWarpLess && Warp() == 3 && n == 7 && (tile + 1) * kRows >= args.valid)
          continue;
        MultiplyRegisters<T>(out, rounded[n], ColumnsTile(b + 16 * n * kBoxColumns, kB));
      }
      CommitProducts();
      if (kTileFault == TileFault::kOperandTouched) rounded[3][1] ^= 1;
      const auto release = [&] {
        if (Lane() == 0 || kTileFault == TileFault::kEveryLaneReleases) Arrive(free);
      };
      if (kTileFault == TileFault::kEarlyRelease) {
        release();
        SyncSome(2, 128);
        if (tile == 0) WaitMbarrier(full, 1);
      }
      if (kTileFault == TileFault::kNoProductWait && (tile + 1) * kRows >= args.valid) {
        // and the sums are stored at once
      } else if (kTileFault == TileFault::kWaitTooShort) {
        WaitProducts<1>(out);
      } else {
        WaitProducts<0>(out);
      }
      if (kTileFault != TileFault::kEarlyRelease) release();
    }
    for (int i = 0; i < 32; ++i)
      args.out[(16 * Warp() + Lane() / 4 + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) + 2 * (Lane() % 4) + i % 2] = out[i];
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<T> a = arena.Take<T>(kA), b = arena.Take<T>(2 * kB);
    const Shared<float> numbers = arena.Take<float>(4);
    const Shared<Mbarrier> barriers = arena.Take<Mbarrier>(4);
    if (Thread() == 0) {
      InitMbarrier(barriers, 1);
      if (kTileFault != TileFault::kNoInit) InitMbarrier(barriers + 1, 4);
      InitMbarrier(barriers + 2, 1);
      if (kTileFault != TileFault::kNoMbarrierFence) FenceMbarriers();
    }
    SyncThreads();
    if (Warp() < 4) {
      Multiply(args, a, b, barriers);
      if (Lane() == 0) numbers[Warp()] = static_cast<float>(1 + Warp());
      ArriveSome(1, kTileFault == TileFault::kNamedCount && Warp() == 1 ? 128 : kThreads);
    } else {
      Copy(args, a, b, barriers);
      if (kTileFault == TileFault::kNamedLeft) return;
      SyncSome(1, kThreads);
      if (Lane() == 0) args.sum[0] = numbers[0] + numbers[1] + numbers[2] + numbers[3];
    }
  }
};

constexpr int kValid = 290, kAll = 300;  // rows 290 to 299 are NaN, and the third tile ends after row 299

template <typename T, TileFault kTileFault = TileFault::kNone>
void ExpectTheProducts() {
  const Array<T> a(64 * 64), b(kAll * 64);
  for (int i = 0; i < 64 * 64; ++i) a[i] = T(static_cast<float>(i * 7 % 5 % 3 - 1));
  for (int i = 0; i < kAll * 64; ++i)
    b[i] = T(i < kValid * 64 ? static_cast<float>(i * 5 % 11 % 3 - 1) : std::numeric_limits<float>::quiet_NaN());
  const Array<float> out(64 * 64), sum(1);
  using Kernel = MultiplyTwice<T, kTileFault>;
  Launch<Kernel>({}, {.shared_bytes = Kernel::kShared},
                 {MapBoxes(EncodeBoxes({a.data(), DTypeOf<T>::value}, 64, 64, 64)),
                  MapBoxes(EncodeBoxes({b.data(), DTypeOf<T>::value}, kAll, 64, 128)), kValid, out.data(), sum.data()});
  EXPECT_EQ(sum[0], 10);
  for (int i = 0; i < 64; ++i) {
    float expected[64] = {};
    for (int row = 0; row < kValid; ++row) {
      float score = 0;
      for (int k = 0; k < 64; ++k) score += Widen(a[i * 64 + k]) * Widen(b[row * 64 + k]);
      for (int j = 0; j < 64; ++j) expected[j] += score * Widen(b[row * 64 + j]);
    }
    for (int j = 0; j < 64; ++j) ASSERT_EQ(out[i * 64 + j], expected[j]) << i << " " << j;
  }
}

TEST(Hopper, CopiesAndProductsGiveTheRightResult) {
  ExpectTheProducts<BFloat16>();
  ExpectTheProducts<Float16>();
}

template <TileFault kTileFault>
void ExpectCaught(const std::string& what) {
  try {
    ExpectTheProducts<BFloat16, kTileFault>();
    ADD_FAILURE() << "not caught: " << what;
  } catch (const KernelError& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find(what), said.npos) << said << "\ndoes not say\n" << what;
  }
}

TEST(Hopper, TilesThatAreNotThereYetAreCaught) {
  ExpectCaught<TileFault::kNoWaitForTile>("a tile is used before anything was copied or written to it [tiles_test.cc:");
  ExpectCaught<TileFault::kWrongParity>("a tile is used before anything was copied or written to it [tiles_test.cc:");
  ExpectCaught<TileFault::kReadsUnarrived>("a tile is used before its copy has arrived [tiles_test.cc:");
}

TEST(Hopper, TilesThatAreStillReadAreCaught) {
  // The copy would be announced while the one before is on its way.
  ExpectCaught<TileFault::kNoWaitForFree>("one arrival too many in a phase of an mbarrier for 1 [tiles_test.cc:");
  ExpectCaught<TileFault::kEarlyRelease>("a copy overwrites a tile that a product still reads [tiles_test.cc:");
}

TEST(Hopper, AccumulatorsInUseAreCaught) {
  ExpectCaught<TileFault::kNoProductWait>("a product is never waited for [tiles_test.cc:");
  ExpectCaught<TileFault::kWaitTooShort>("a wait that leaves out the product with these accumulators [tiles_test.cc:");
  ExpectCaught<TileFault::kAccumulatorsTouched>("accumulators are written before the product");
  ExpectCaught<TileFault::kNoCommit>("a wait that leaves out the product with these accumulators [tiles_test.cc:");
  ExpectCaught<TileFault::kOperandTouched>("an operand in registers is written before the product is waited for");
}

TEST(Hopper, MissingFencesAreCaught) {
  ExpectCaught<TileFault::kNoProductFence>("a product without a fence after the last access of its accumulators");
  ExpectCaught<TileFault::kTouchedAfterFence>("accumulators are written between the fence and the product");
  ExpectCaught<TileFault::kOperandAfterFence>("an operand in registers is written between the fence and the product");
  ExpectCaught<TileFault::kNoAsyncFence>("and did not fence [tiles_test.cc:");
  ExpectCaught<TileFault::kNoMbarrierFence>("an mbarrier whose making was not fenced [tiles_test.cc:");
}

TEST(Hopper, MbarriersCountArrivalsAndBytes) {
  ExpectCaught<TileFault::kTooFewBytes>(
      "a copy of 16384 bytes arrives at an mbarrier that expects 16368 [tiles_test.cc:");
  ExpectCaught<TileFault::kTooManyBytes>("which misses 0 arrivals and 16 bytes [tiles_test.cc:");
  ExpectCaught<TileFault::kWrongBarrier>("a copy of 8192 bytes arrives at an mbarrier that expects 0 [tiles_test.cc:");
  ExpectCaught<TileFault::kNoInit>("an mbarrier that was not initialised [tiles_test.cc:");
  ExpectCaught<TileFault::kArrivesTwice>("one arrival too many in a phase of an mbarrier for 1 [tiles_test.cc:");
  ExpectCaught<TileFault::kEveryLaneReleases>("never continues: thread ");
  ExpectCaught<TileFault::kNobodyWaits>("a copy of a box that nobody waits for [tiles_test.cc:");
}

TEST(Hopper, MisalignedTilesAreCaught) {
  ExpectCaught<TileFault::kMisalignedBox>("which is not a multiple of 1024 [tiles_test.cc:");
  ExpectCaught<TileFault::kMisalignedOperand>("is not aligned to its swizzle [tiles_test.cc:");
}

TEST(Hopper, WarpsOfAWarpgroupMultiplyTogether) {
  ExpectCaught<TileFault::kWarpsDiffer>("threads of a warpgroup multiply other tiles than at tiles_test.cc:");
  ExpectCaught<TileFault::kOneWarpLess>("leaves out a product of its warpgroup [tiles_test.cc:");
}

TEST(Hopper, NamedBarriersHaveTheirThreads) {
  ExpectCaught<TileFault::kNamedLeft>("named barrier 1 is left with 128 threads that arrived [tiles_test.cc:");
  ExpectCaught<TileFault::kNamedCount>("named barrier 1 is for ");
}

TEST(Hopper, ThreadsMayReadABoxThatHasArrived) { ExpectTheProducts<BFloat16, TileFault::kReadsBox>(); }

// Reads a box at once.
struct ReadTooEarly {
  static constexpr bool kHopper = true;
  static constexpr int kThreads = kWarpSize;
  struct Args {
    BoxMap from;
    float* out;
  };
  static constexpr int kShared = SharedBytes<BFloat16>(64 * kBoxColumns) + SharedBytes<Mbarrier>(1);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<BFloat16> box = arena.Take<BFloat16>(64 * kBoxColumns);
    const Shared<Mbarrier> full = arena.Take<Mbarrier>(1);
    if (Thread() == 0) {
      InitMbarrier(full, 1);
      FenceMbarriers();
      ArriveExpecting(full, 64 * kBoxRowBytes);
      CopyBox(box, args.from, 0, 0, full);
    }
    SyncThreads();
    args.out[Thread()] = Widen(box[Thread()]);
    WaitMbarrier(full, 0);
  }
};
// Uses an mbarrier without saying what the kernel is for.
struct NotForHopper {
  static constexpr int kThreads = kWarpSize;
  struct Args {
    float* out;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<Mbarrier> full = arena.Take<Mbarrier>(1);
    if (Thread() == 0) InitMbarrier(full, 1);
    args.out[Thread()] = 0;
  }
};

TEST(Hopper, OtherMisuseIsCaught) {
  const Array<BFloat16> from(64 * 64);
  for (BFloat16& x : from.span()) x = BFloat16(1.0f);
  const Array<float> out(32);
  const auto says = [](const auto& launch, const std::string& what) {
    try {
      launch();
      ADD_FAILURE() << "not caught: " << what;
    } catch (const KernelError& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  says(
      [&] {
        Launch<ReadTooEarly>({}, {.shared_bytes = ReadTooEarly::kShared},
                             {MapBoxes(EncodeBoxes({from.data(), DType::kBFloat16}, 64, 64, 64)), out.data()});
      },
      "an access of a box before its copy has arrived [tiles_test.cc:");
  says([&] { Launch<NotForHopper>({}, {.shared_bytes = SharedBytes<Mbarrier>(1)}, {out.data()}); },
       "a kernel without kHopper uses hopper.cuh [tiles_test.cc:");
  says([&] { Launch<NotForHopper>({}, {.shared_bytes = kMaxSharedBytes + 16}, {out.data()}); },
       "bytes of shared memory, more than every GPU that runs it has");
}

}  // namespace
}  // namespace shiftrt::gpu
