// SPDX-License-Identifier: Apache-2.0
// Counts what a matrix-vector product reads before it waits for earlier launches and before it lets the next one start.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/matvec.h"
#include "kernels/emulated/machine.h"

namespace shiftrt::gpu {
namespace {

struct Shares {
  double before_wait, before_next;
};

// The shares of the weights that are read before the launch waits, and before the next launch may start.
Shares SharesOf(int64_t rows) {
  const StreamOwner stream(0);
  constexpr int64_t kCols = 264;
  const std::vector<float> ones(rows * kCols, 1.0f);
  const DeviceBuffer<float> w(stream.get(), std::span<const float>(ones), "a test"),
      x(stream.get(), std::span<const float>(ones).first(kCols), "a test"), y(stream.get(), rows, "a test");
  const emu::StreamedBytes before = emu::Streamed();
  MatVec(stream.get(), {.w = {w.data(), DType::kFloat32}, .rows = rows, .cols = kCols, .x = x.data(), .y = y.data()},
         1);
  const emu::StreamedBytes after = emu::Streamed();
  EXPECT_EQ(after.all - before.all, rows * kCols * 4);
  const auto share = [&](int64_t emu::StreamedBytes::*part) {
    return static_cast<double>(after.*part - before.*part) / static_cast<double>(after.all - before.all);
  };
  return {share(&emu::StreamedBytes::before_wait), share(&emu::StreamedBytes::before_next)};
}

// On one multiprocessor, two blocks of eight warps take 32 rows at a time.
TEST(MatVecCosts, TheNextLaunchStartsWithTheLastRows) {
  EXPECT_EQ(SharesOf(4 * 32).before_next, 0.75);
  EXPECT_EQ(SharesOf(10 * 32).before_next, 0.9);
  // The first block has a row more than four rounds, the second does not.
  EXPECT_EQ(SharesOf(4 * 32 + 2).before_next, (4.0 * 16 + 3.0 * 16) / (4 * 32 + 2));
}

TEST(MatVecCosts, TheFirstRowsAreReadBeforeTheWait) {
  EXPECT_EQ(SharesOf(32).before_wait, 1);
  EXPECT_EQ(SharesOf(4 * 32).before_wait, 0.25);
  EXPECT_EQ(SharesOf(10 * 32).before_wait, 0.1);
}

}  // namespace
}  // namespace shiftrt::gpu
