// SPDX-License-Identifier: Apache-2.0
// Tests what attention over many tokens reads on compute capability 9.0, which the emulator counts.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#include "kernels/emulated/memory.h"
#include "kernels/emulated/tile_memory.h"

namespace shiftrt::gpu {
namespace {

// A block of 128 queries of a head copies them once, and the keys and values that its last query sees once each, in
// tiles of 128; all in one launch.
TEST(AttentionCosts, KeysAndValuesAreCopiedOncePerBlockOfQueries) {
  const emu::ComputeCapability capability(9);
  constexpr int kHeads = 2, kHeadDim = 64, kTileBytes = 128 * kHeadDim * 2;
  const std::vector<PackedSequence> sequences = {{0, 200, 100, 0}, {200, 1, 0, 300}};
  constexpr int kTokens = 201, kRows = 301;
  const auto ones = [](int64_t count) { return std::vector<BFloat16>(count, BFloat16(1.0f)); };
  const emu::Array<BFloat16> q(ones(int64_t{kTokens} * kHeads * kHeadDim)), keys(ones(int64_t{kRows} * kHeadDim)),
      values(ones(int64_t{kRows} * kHeadDim)), out(q.size());
  const emu::Array<PackedSequence> there(sequences);
  const int64_t before = emu::BoxBytes(), launches = emu::Launches();
  AttendPacked({}, {.shape = {kHeads, 1, kHeadDim, 1 / std::sqrt(static_cast<float>(kHeadDim))},
                    .q = {q.data(), DType::kBFloat16},
                    .keys = {keys.data(), DType::kBFloat16},
                    .values = {values.data(), DType::kBFloat16},
                    .sequences = there.data(),
                    .sequence_count = 2,
                    .longest = 200,
                    .tokens = kTokens,
                    .rows = kRows,
                    .out = {out.data(), DType::kBFloat16}});
  EXPECT_EQ(emu::Launches() - launches, 1);
  // Queries 0 to 127 see keys up to 227, queries 128 to 199 up to 299, and the query of the other sequence one key.
  const int64_t tiles = (1 + 2 * 2) + (1 + 2 * 3) + (1 + 2 * 1);
  EXPECT_EQ(emu::BoxBytes() - before, kHeads * tiles * kTileBytes);
  for (const BFloat16 x : out.span()) EXPECT_EQ(static_cast<float>(x), 1);
}

}  // namespace
}  // namespace shiftrt::gpu
