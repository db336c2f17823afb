// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lra.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/lra_cases.h"
#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#endif

namespace shiftrt::gpu {
namespace {

class LraOnGpu : public CudaTest {
 protected:
  void Check(const test::LraCase& c, LraKernel kernel, double roundings) {
    SCOPED_TRACE(c.Name());
    const test::LraProblem problem(c);
    const Input<float> p(stream_, problem.p), q(stream_, problem.q), bias(stream_, problem.bias), h(stream_, problem.h);
    const LowRankLra lra{p.data(), q.data(), bias.data(), c.hidden, c.rank};
    const Output<float> scratch(stream_, LowRankLraScratch(lra));
    ApplyLowRankLra(stream_, lra, scratch.data(), h.data(), kernel);
    test::ExpectClose("h", Now(stream_, h), problem.Exactly(), {roundings, DType::kFloat32, 0});
  }
  // Calls check(case) for those that the kernels can take.
  template <typename Body>
  void ForEachCase(const Body& check) {
    for (const test::LraCase& c : test::LraCases()) {
      if (c.hidden % 8 != 0 || c.rank % 8 != 0) continue;
      check(c);
      if (HasFailure()) return;
    }
  }
};

// 8 products and 3 shuffles, a sum over blocks and a sum over 8 groups of blocks, a sum over rank / 32 and 5 shuffles.
TEST_F(LraOnGpu, OneLaunchAgreesWithFloat64) {
  ForEachCase([&](const test::LraCase& c) {
    if (c.hidden > 576) return;  // it needs more blocks than a small GPU has multiprocessors
    Check(c, LraKernel::kGrid, 28 + static_cast<double>(c.hidden) / 64 + static_cast<double>(c.rank) / 32);
  });
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
};

// 4 products in each of hidden / 2048 steps and 5 shuffles, a sum over 16 blocks, 4 products in each of rank / 32 steps
// and 3 shuffles, and the two additions to the stream.
TEST_F(LraInClusterOnGpu, AgreesWithFloat64) {
  ForEachCase([&](const test::LraCase& c) {
    Check(c, LraKernel::kCluster, 36 + 4 * (static_cast<double>(c.hidden) / 2048 + static_cast<double>(c.rank) / 32));
  });
}

TEST_F(LraInClusterOnGpu, IsWhatTheDeviceTakesByItselfWhereItFits) {
  const auto takes = [&](int64_t hidden, int64_t rank) {
    return LraTakesCluster(stream_, {.hidden = hidden, .rank = rank});
  };
  EXPECT_TRUE(takes(4096, 96));
  EXPECT_FALSE(takes(4096, 112));
  EXPECT_FALSE(takes(8, kMaxFusedRank + 8));
  Check({64, 16}, LraKernel::kFastest, 64);
  EXPECT_THROW(Check({4096, 112}, LraKernel::kCluster, 64), std::runtime_error);
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
