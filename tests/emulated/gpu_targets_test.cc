// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_targets.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/test_directory.h"

namespace shiftrt {
namespace {

GpuKernelTime Timed(const char* room, double share) {
  return {.room = room, .name = "4096 tokens", .seconds = 1, .floor = share};
}

TEST(GpuTargets, AttentionIsTheKernelThatRuns) {
  const GpuKernelTime packed = Timed("attention_packed", 0.25), warpgroup = Timed("attention_warpgroup", 0.5);
  for (const auto& kernels : {std::vector{packed, warpgroup}, std::vector{warpgroup, packed}}) {
    const auto measured = MeasuredTargets(kernels, {}, {});
    ASSERT_EQ(measured.size(), 1);
    EXPECT_EQ(std::string(measured[0].target->what), "packed attention, share of the peak");
    EXPECT_EQ(measured[0].found, 0.5);
  }
  EXPECT_EQ(MeasuredTargets(std::vector{packed}, {}, {})[0].found, 0.25);
  EXPECT_TRUE(MeasuredTargets({}, {}, {}).empty());
}

TEST(GpuTargets, OfAModelAndTheJob) {
  const GpuModelBench model{.variants = {{"original", 90, 100, 1},
                                         {"pruned", 120, 130, 1},
                                         {"pruned + LRA 64", 119, 130, 1},
                                         {"merged", 118, 130, 1}},
                            .together = {},
                            .prefill_tokens_per_second = 700,
                            .prefill_floor = 1000};
  const auto measured = MeasuredTargets({}, model, MainJobTimes{.total = 12});
  const double found[] = {0.9, 120.0 / 90, 1 - 119.0 / 120, 1 - 118.0 / 120, 0.7, 12};
  ASSERT_EQ(measured.size(), std::size(found));
  for (size_t i = 0; i < std::size(found); ++i)
    EXPECT_DOUBLE_EQ(measured[i].found, found[i]) << measured[i].target->what;
}

// docs/dev/gpu.md has the targets, with what is expected and not measured.
TEST(GpuTargets, AreThoseOfTheDocumentation) {
  std::ifstream file(TestDirectory() / "../docs/dev/gpu.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(text.empty());
  for (const GpuTarget& target : kGpuTargets) {
    const std::string row = std::string("| ") + target.what + " | " + target.wanted + " | " + target.expected + " |";
    EXPECT_NE(text.find(row), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace shiftrt
