// SPDX-License-Identifier: Apache-2.0
// Counts when a matrix-vector product lets the next launch start, which the emulator can.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/matvec.h"
#include "kernels/emulated/machine.h"

namespace shiftrt::gpu {
namespace {

// The share of the weights that are read before the next launch may start.
double ShareBeforeNext(int64_t rows) {
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
  return static_cast<double>(after.before_next - before.before_next) / static_cast<double>(after.all - before.all);
}

// On one multiprocessor, two blocks of eight warps take 32 rows at a time.
TEST(MatVecCosts, TheNextLaunchStartsWithTheLastRows) {
  EXPECT_EQ(ShareBeforeNext(32), 0);
  EXPECT_EQ(ShareBeforeNext(4 * 32), 0.75);
  EXPECT_EQ(ShareBeforeNext(10 * 32), 0.9);
  // The first block has a row more than four rounds, the second does not.
  EXPECT_EQ(ShareBeforeNext(4 * 32 + 2), (4.0 * 16 + 3.0 * 16) / (4 * 32 + 2));
}

}  // namespace
}  // namespace shiftrt::gpu
