// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lra.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class LraOnGpu : public CudaTest {
 protected:
  void Check(int64_t hidden, int64_t rank) {
    const auto p = Input<float>::Normal(stream_, rank * hidden, 1), q = Input<float>::Normal(stream_, hidden * rank, 2),
               bias = Input<float>::Normal(stream_, hidden, 3), h = Input<float>::Normal(stream_, hidden, 4);
    const LowRankLra lra{p.data(), q.data(), bias.data(), hidden, rank};
    const Output<float> scratch(stream_, LowRankLraScratch(lra));
    ApplyLowRankLra(stream_, lra, scratch.data(), h.data());
    const std::vector<double> found = Now(stream_, h);
    std::vector<double> inner(rank, 0.0), inner_size(rank, 0.0);
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t j = 0; j < hidden; ++j) {
        inner[r] += h[j] * p[r * hidden + j];
        inner_size[r] += std::abs(h[j] * p[r * hidden + j]);
      }
    }
    for (int64_t j = 0; j < hidden; ++j) {
      double expected = h[j] + bias[j], size = std::abs(h[j]) + std::abs(bias[j]);
      for (int64_t r = 0; r < rank; ++r) {
        expected += inner[r] * q[j * rank + r];
        size += inner_size[r] * std::abs(q[j * rank + r]);
      }
      // Roundings on the longest path: 8 products and 3 shuffles, a sum over blocks and a sum over 8 groups of blocks,
      // a sum over rank / 32 and 5 shuffles.
      const double roundings = 28 + static_cast<double>(hidden) / 64 + static_cast<double>(rank) / 32;
      EXPECT_CLOSE(found[j], expected, roundings * kUnit<float> * size, j);
    }
  }
};

TEST_F(LraOnGpu, OneLaunchAgreesWithFloat64) {
  for (const int64_t hidden : {8, 64, 72, 200, 520})
    for (const int64_t rank : {8, 40, 64}) Check(hidden, rank);
  Check(192, kMaxFusedRank);
}

TEST(LraTile, OneLaunchNeedsRoomForAllItsBlocks) {
  const auto fits = [](int64_t hidden, int64_t rank, int multiprocessors) {
    return LowRankLraFits({.hidden = hidden, .rank = rank}, multiprocessors);
  };
  EXPECT_TRUE(fits(4096, 64, 132));
  EXPECT_TRUE(fits(4096, 64, 64));
  EXPECT_FALSE(fits(4096, 64, 63));
  EXPECT_TRUE(fits(64, kMaxFusedRank, 1));
  EXPECT_FALSE(fits(64, kMaxFusedRank + 8, 132));
}

TEST_F(LraOnGpu, RefusesRanksItCannotTake) {
  const Input<float> h(stream_, std::vector<double>(64, 1.0));
  for (const int64_t rank : {0, 12, 264}) {
    const LowRankLra lra{h.data(), h.data(), h.data(), 8, rank};
    EXPECT_THROW(ApplyLowRankLra(stream_, lra, h.data(), h.data()), std::runtime_error);
  }
}

}  // namespace
}  // namespace shiftrt::gpu
