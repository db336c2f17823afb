// SPDX-License-Identifier: Apache-2.0
// Counts the barriers of the grid that the choice of a token takes, which the emulator can.
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "kernels/cuda/sample.h"
#include "kernels/emulated/machine.h"

namespace shiftrt::gpu {
namespace {

// docs/dev/gpu.md has these numbers.
TEST(SampleCosts, FewBarriersOfTheGrid) {
  const StreamOwner stream(0);
  constexpr int64_t kVocab = 2500;
  std::vector<float> values(kVocab);
  for (int64_t i = 0; i < kVocab; ++i) values[i] = static_cast<float>(i % 37) / 8;
  const DeviceBuffer<float> logits(stream.get(), std::span<const float>(values), "a test");
  const DeviceBuffer<uint64_t> scratch(stream.get(), SampleScratch(kVocab, 3), "a test");
  const DeviceBuffer<int32_t> token(stream.get(), 1, "a test");
  const auto barriers = [&](const SampleRequest& request) {
    const DeviceBuffer<SampleRequest> there(stream.get(), std::span(&request, 1), "a test");
    const int64_t before = emu::GridBarriers();
    SampleToken(stream.get(), logits.data(), kVocab, there.data(), 3, scratch.data(), token.data());
    return emu::GridBarriers() - before;
  };
  EXPECT_EQ(barriers({.temperature = 0}), 1);
  EXPECT_EQ(barriers({.temperature = 1, .uniform = 0.5}), 5);
  EXPECT_EQ(barriers({.temperature = 1, .top_p = 0.9, .uniform = 0.5, .top_k = 50}), 9);
}

}  // namespace
}  // namespace shiftrt::gpu
