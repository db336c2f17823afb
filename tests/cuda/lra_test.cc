// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lra.h"

#include "tests/cuda/fixture.h"
#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#endif

namespace shiftrt::gpu {
namespace {

class LraOnGpu : public CudaTest {
 protected:
  // Roundings on the longest path of either kernel are at most `roundings`.
  void Check(int64_t hidden, int64_t rank, LraKernel kernel, double roundings) {
    const auto p = Input<float>::Normal(stream_, rank * hidden, 1), q = Input<float>::Normal(stream_, hidden * rank, 2),
               bias = Input<float>::Normal(stream_, hidden, 3), h = Input<float>::Normal(stream_, hidden, 4);
    const LowRankLra lra{p.data(), q.data(), bias.data(), hidden, rank};
    const Output<float> scratch(stream_, LowRankLraScratch(lra));
    ApplyLowRankLra(stream_, lra, scratch.data(), h.data(), kernel);
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
      EXPECT_CLOSE(found[j], expected, roundings * kUnit<float> * size, j);
    }
  }
  // 8 products and 3 shuffles, a sum over blocks and a sum over 8 groups of blocks, a sum over rank / 32 and 5
  // shuffles.
  void CheckGrid(int64_t hidden, int64_t rank) {
    Check(hidden, rank, LraKernel::kGrid, 28 + static_cast<double>(hidden) / 64 + static_cast<double>(rank) / 32);
  }
};

TEST_F(LraOnGpu, OneLaunchAgreesWithFloat64) {
  for (const int64_t hidden : {8, 64, 72, 200, 520})
    for (const int64_t rank : {8, 40, 64}) CheckGrid(hidden, rank);
  CheckGrid(192, kMaxFusedRank);
}

class LraInClusterOnGpu : public LraOnGpu {
 protected:
#ifdef SHIFTRT_EMULATED
  const emu::ComputeCapability capability_{9};
#endif
  void SetUp() override {
    LraOnGpu::SetUp();
    if (!IsSkipped())
      RequireHopper(LraTakesCluster(stream_, {.hidden = 8, .rank = 8}), SwitchedOn("SHIFTRT_CUDA_CLUSTERS", true));
  }
  // 4 products in each of hidden / 2048 steps and 5 shuffles, a sum over 16 blocks, 4 products in each of rank / 32
  // steps and 3 shuffles, and the two additions to the stream.
  void CheckCluster(int64_t hidden, int64_t rank) {
    Check(hidden, rank, LraKernel::kCluster,
          36 + 4 * (static_cast<double>(hidden) / 2048 + static_cast<double>(rank) / 32));
  }
};

TEST_F(LraInClusterOnGpu, AgreesWithFloat64) {
  for (const int64_t hidden : {8, 64, 136, 520, 2176})  // blocks without columns, and with fewer than others
    for (const int64_t rank : {8, 40, 64}) CheckCluster(hidden, rank);
  CheckCluster(576, 256);
  CheckCluster(4096, 96);
}

TEST_F(LraInClusterOnGpu, IsWhatTheDeviceTakesByItselfWhereItFits) {
  const auto takes = [&](int64_t hidden, int64_t rank) {
    return LraTakesCluster(stream_, {.hidden = hidden, .rank = rank});
  };
  EXPECT_TRUE(takes(4096, 96));
  EXPECT_FALSE(takes(4096, 112));
  EXPECT_FALSE(takes(8, kMaxFusedRank + 8));
  Check(64, 16, LraKernel::kFastest, 64);
  EXPECT_THROW(Check(4096, 112, LraKernel::kCluster, 64), std::runtime_error);
}

TEST(HopperTests, ADeviceThatRefusesItsKernelFailsInsteadOfBeingSkipped) {
  EXPECT_EQ(FateOnHopper(true, true, 9, 0), Fate::kRuns);
  EXPECT_EQ(FateOnHopper(false, true, 9, 0), Fate::kFails);
  EXPECT_EQ(FateOnHopper(false, false, 9, 0), Fate::kSkips);
  EXPECT_EQ(FateOnHopper(false, true, 8, 0), Fate::kSkips);
  EXPECT_EQ(FateOnHopper(false, true, 10, 0), Fate::kSkips);
}

TEST(LraTile, OneLaunchNeedsRoomForAllItsBlocks) {
  const auto takes = [](int64_t hidden, int64_t rank, int multiprocessors) {
    return LraTakesGrid({.hidden = hidden, .rank = rank}, multiprocessors);
  };
  EXPECT_TRUE(takes(4096, 64, 132));
  EXPECT_TRUE(takes(4096, 64, 64));
  EXPECT_FALSE(takes(4096, 64, 63));
  EXPECT_TRUE(takes(64, kMaxFusedRank, 1));
  EXPECT_FALSE(takes(64, kMaxFusedRank + 8, 132));
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
