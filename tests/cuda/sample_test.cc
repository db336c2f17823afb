// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sample.h"

#include "engine/sampling.h"
#include "runtime/check.h"
#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

constexpr double kInfinity = HUGE_VAL;
constexpr int kMultiprocessors = 3;  // every GPU has at least this many

// The oracle is the sampler on the CPU, which computes in float64.
class SampleOnGpu : public CudaTest {
 protected:
  int32_t Run(const Input<float>& logits, const SamplingOptions& options, double uniform) {
    const SampleRequest request{options.temperature, options.top_p, uniform, options.top_k};
    const DeviceBuffer<SampleRequest> there(stream_, std::span(&request, 1), "a test");
    const Output<int32_t> token(stream_, 1);
    const int64_t vocab = logits.buffer.size();
    const DeviceBuffer<uint64_t> scratch(stream_, SampleScratch(vocab, kMultiprocessors), "a test");
    SampleToken(stream_, logits.data(), vocab, there.data(), kMultiprocessors, scratch.data(), token.data());
    return token.Raw()[0];
  }
  int32_t Run(const std::vector<double>& logits, const SamplingOptions& options, double uniform) {
    return Run(Input<float>(stream_, logits), options, uniform);
  }
  static int32_t Expected(const Input<float>& logits, const SamplingOptions& options, double uniform) {
    const std::vector<float> values(logits.values.begin(), logits.values.end());
    return shiftrt::SampleToken(values, options, uniform);
  }
  void ExpectTheCpus(const Input<float>& logits, const SamplingOptions& options, double uniform) {
    EXPECT_EQ(Run(logits, options, uniform), Expected(logits, options, uniform))
        << logits.buffer.size() << " tokens, temperature " << options.temperature << ", top-k " << options.top_k
        << ", top-p " << options.top_p << ", draw " << uniform;
  }
};

TEST_F(SampleOnGpu, ChoosesAsTheCpuDoes) {
  Random random(11);
  for (const int64_t vocab : {1, 33, 1025, 2500}) {
    const auto logits = Input<float>::Normal(stream_, vocab, static_cast<uint64_t>(vocab), 3);
    for (const double temperature : {0.3, 40.0})
      for (const int64_t top_k : {0, 7, 1024})
        for (const double top_p : {0.0, 0.9, 1.0}) ExpectTheCpus(logits, {temperature, top_p, top_k}, random.Uniform());
  }
}

TEST_F(SampleOnGpu, ChoosesAsTheCpuDoesFromARealVocabulary) {
  Random random(12);
  const auto logits = Input<float>::Normal(stream_, 151936, 3, 2.5);
  for (const SamplingOptions& options :
       {SamplingOptions{1, 1, 0}, {0.8, 0.95, 50}, {1, 0.9, 0}, {1, 1, 151935}, {5, 1, 1}, {0, 1, 0}})
    ExpectTheCpus(logits, options, random.Uniform());
}

TEST_F(SampleOnGpu, TheLowestIdWinsATie) {
  std::vector<double> logits(2500, -5.0);
  for (const int at : {70, 301, 2499}) logits[at] = 2.0;
  EXPECT_EQ(Run(logits, {}, 0), 70);
  EXPECT_EQ(Run({-1, -0.0, 0.0, -0.0}, {}, 0), 1);
  EXPECT_EQ(Run({-kInfinity, -kInfinity, -kInfinity}, {}, 0), 0);
}

// With equal weights, both samplers compute the borders between tokens exactly.
TEST_F(SampleOnGpu, EqualsStandInTheOrderOfTheirIds) {
  const Input<float> four(stream_, {0.0, -0.0, -0.0, 0.0});
  for (const double uniform : {0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, 1 - 0x1p-53}) {
    EXPECT_EQ(Run(four, {0.7, 1, 0}, uniform), static_cast<int>(4 * uniform));
    ExpectTheCpus(four, {0.7, 1, 0}, uniform);
    ExpectTheCpus(four, {0.7, 1, 3}, uniform);
    for (const double top_p : {0.25, 0.5, 0.51}) ExpectTheCpus(four, {0.7, top_p, 0}, uniform);
  }
  std::vector<double> many(3000, 1.0);
  for (int i = 0; i < 3000; i += 2) many[i] = -2;
  const Input<float> half(stream_, many);
  EXPECT_EQ(Run(half, {1e-3, 1, 0}, 0), 1);
  EXPECT_EQ(Run(half, {1e-3, 1, 0}, 1 - 0x1p-53), 2999);
  EXPECT_EQ(Run(half, {1e-3, 1, 700}, 1 - 0x1p-53), 1399);
  EXPECT_EQ(Run(half, {1e-3, 0.1, 0}, 1 - 0x1p-53), 299);
}

TEST_F(SampleOnGpu, InfinitiesAreTheCpus) {
  for (const std::vector<double>& values :
       {std::vector<double>{0, kInfinity, kInfinity}, {-kInfinity, -kInfinity}, {-kInfinity, 1, -kInfinity, 1.5}})
    for (const double temperature : {0.0, 1.0})
      for (const double uniform : {0.0, 0.3, 0.99})
        ExpectTheCpus(Input<float>(stream_, values), {temperature, 0.9, 3}, uniform);
}

TEST_F(SampleOnGpu, ANaNIsToldApart) {
  for (const int at : {0, 250, 599}) {
    std::vector<double> logits(600, 1.0);
    logits[at] = NAN;
    logits[17] = kInfinity;
    for (const double temperature : {0.0, 1.0}) EXPECT_EQ(Run(logits, {temperature, 0.9, 40}, 0.5), -1);
  }
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
