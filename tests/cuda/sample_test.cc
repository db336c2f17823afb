// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sample.h"

#include "runtime/check.h"
#include "tests/cuda/fixture.h"
#include "tests/engine/sample_cases.h"

namespace shiftrt::gpu {
namespace {

constexpr int kMultiprocessors = 3;  // every GPU has at least this many

class SampleOnGpu : public CudaTest {
 protected:
  int32_t Run(const DeviceBuffer<float>& logits, const SamplingOptions& options, double uniform) {
    const SampleRequest request{options.temperature, options.top_p, uniform, options.top_k};
    const DeviceBuffer<SampleRequest> there(stream_, std::span(&request, 1), "a test");
    const Output<int32_t> token(stream_, 1);
    const DeviceBuffer<uint64_t> scratch(stream_, SampleScratch(logits.size(), kMultiprocessors), "a test");
    SampleToken(stream_, logits.data(), logits.size(), there.data(), kMultiprocessors, scratch.data(), token.data());
    return token.Raw()[0];
  }
  DeviceBuffer<float> Upload(const std::vector<float>& logits) {
    return {stream_, std::span<const float>(logits), "a test"};
  }
};

TEST_F(SampleOnGpu, ChoosesByTheDefinition) {
  for (const test::SampleCase& c : test::SampleCases()) {
    const DeviceBuffer<float> logits = Upload(c.logits);
    const auto choose = [&](const std::vector<float>&, const SamplingOptions& options, double uniform) {
      return Run(logits, options, uniform);
    };
    c.Expect(choose, TooLarge(std::ssize(c.choices), 100) ? 37 : 1);  // no number of draws, so that these differ
    if (HasFailure()) return;
  }
}

TEST_F(SampleOnGpu, ANaNIsToldApart) {
  for (const std::vector<float>& logits : test::SamplesOfNaN())
    for (const double temperature : {0.0, 1.0}) EXPECT_EQ(Run(Upload(logits), {temperature, 0.9, 40}, 0.5), -1);
}

TEST_F(SampleOnGpu, RefusesAVocabularyItsSumsHaveNoRoomFor) {
  EXPECT_THROW(SampleToken(stream_, nullptr, kMaxSampledVocab + 1, nullptr, 1, nullptr, nullptr), Error);
  EXPECT_THROW(SampleToken(stream_, nullptr, 0, nullptr, 1, nullptr, nullptr), Error);
}

TEST(SampleTile, NoMoreBlocksThanAreResidentTogether) {
  EXPECT_EQ(SampleBlocks(1, 132), 1);
  EXPECT_EQ(SampleBlocks(5003, 132), 5);
  EXPECT_EQ(SampleBlocks(151936, 132), 132);
  EXPECT_EQ(SampleBlocks(151936, 4), 4);
}

}  // namespace
}  // namespace shiftrt::gpu
