// SPDX-License-Identifier: Apache-2.0
// Sequences that are continued together on the device, compared with the CPU and with each sequence alone: on the
// emulator and, if there is one, on a GPU.
#include <gtest/gtest.h>

#include <optional>

#include "engine/decoder.h"
#include "engine/generate.h"
#include "tests/cuda/parity.h"
#include "tests/cuda/quantised_models.h"

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#endif

namespace shiftrt {
namespace {

class TogetherOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::WhyUnavailable().empty()) GTEST_SKIP() << gpu::WhyUnavailable();
  }
};

constexpr int64_t kLengths[] = {1, 70, 9, 20, 3};

// Sequences of different tokens, each in a cache of its own size.
struct Sequences {
  Sequences(Decoder& decoder, std::span<const int64_t> lengths) : decoder(decoder) {
    caches.reserve(lengths.size());
    for (const int64_t length : lengths) {
      caches.emplace_back(decoder.config(), decoder.plan(), length + 8);
      std::vector<int32_t> tokens = Tokens(decoder.weights(), length + std::ssize(caches));
      tokens.erase(tokens.begin(), tokens.begin() + std::ssize(caches));
      decoder.Forward(tokens, caches.back());
    }
  }
  // Appends `token` and further ones to the sequences, and returns the likeliest that follow.
  std::vector<int32_t> Step(int32_t token) {
    std::vector<int32_t> next;
    for (size_t s = 0; s < caches.size(); ++s)
      next.push_back(static_cast<int32_t>((token + s) % decoder.config().vocab));
    std::vector<CachedTokens> step;
    for (size_t s = 0; s < caches.size(); ++s)
      step.push_back({std::span(next).subspan(s, 1), &caches[s], CachedTokens::Choice()});
    return decoder.NextTokens(step);
  }
  Decoder& decoder;
  std::vector<KvCache> caches;
};

// Each sequence appends one token, and then each but the first one and the first three, on both devices.
void ExpectStepsOfTheCpu(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                         std::span<const int64_t> lengths = kLengths) {
  const DType dtype = weights->embedding.dtype;
  std::vector<std::vector<float>> streams[2];
  std::vector<std::vector<int32_t>> chosen[2];
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const int at = device == Device::kCuda;
    const auto keep = [&, at](const Rows& rows, const Batch&) { streams[at].push_back(Copied(rows)); };
    Decoder tapped(On(device), weights, plan, {{weights->config.layers, TapPoint::kInput, keep}}),
        untapped(On(device), weights, plan);
    for (Decoder* const decoder : {&tapped, &untapped}) {
      Sequences sequences(*decoder, lengths);
      for (const int32_t token : {5, 11}) chosen[at].push_back(sequences.Step(token));
      const std::vector<int32_t> three = {1, 2, 3};
      std::vector<CachedTokens> step;
      for (KvCache& cache : sequences.caches)
        step.push_back({std::span(three).first(step.empty() ? 3 : 1), &cache, CachedTokens::Choice()});
      step.back().choice.reset();
      chosen[at].push_back(decoder->NextTokens(step));
      EXPECT_EQ(chosen[at].back().back(), -1);
      // Later tokens see what the steps left in the caches.
      for (KvCache& cache : sequences.caches)
        streams[at].push_back(Copied(decoder->Forward(std::vector<int32_t>{4, 2}, cache)));
    }
  }
  ASSERT_EQ(streams[1].size(), streams[0].size());
  for (size_t i = 0; i < streams[0].size(); ++i)
    EXPECT_LE(RelativeError(streams[1][i], streams[0][i]), ManyTolerance(dtype)) << i;
  if (dtype == DType::kFloat32) {
    EXPECT_EQ(chosen[1], chosen[0]);
  }
}

TEST_F(TogetherOnGpu, StepsOfSequencesOfUnequalLengthsAgreeWithTheCpu) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Shape& shape :
         {kLlama, kQwen2, kQwen3, kGemma2, kStarcoder2, kCohere2, kPhi3Long, kOlmo2, kQwen35, kQwen2Moe, kGptOss}) {
      SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
      ExpectStepsOfTheCpu(MakeWeights(shape, dtype), DepthPlan::Original(2));
      if (dtype == DType::kFloat16) break;
    }
  }
  for (const Shape& shape : {kMixtral, kQwen3Moe, kQwen3Next, kGptOssChoice}) {
    SCOPED_TRACE(shape.type);
    ExpectStepsOfTheCpu(MakeWeights(shape, DType::kFloat32), DepthPlan::Original(2));
  }
}

TEST_F(TogetherOnGpu, StepsOfRepairedModelsAgreeWithTheCpu) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto weights = MakeWeights(kLlama, dtype);
    for (const int64_t rank : {0, 8})
      for (const bool normed : {false, true}) ExpectStepsOfTheCpu(weights, Corrected(*weights, rank, normed));
    const DepthPlan halves = {{BlockStage{0, Halves::kMlp}, BlockStage{1, Halves::kAttention}}};
    ExpectStepsOfTheCpu(weights, halves);
    const auto recurrent = MakeWeights(kQwen35, dtype);
    ExpectStepsOfTheCpu(recurrent, Corrected(*recurrent, 8));
    ExpectStepsOfTheCpu(recurrent, halves);
  }
}

TEST_F(TogetherOnGpu, StepsWithQuantisedWeightsAgreeWithTheCpu) {
  const std::vector<int64_t> many(17, 2);
  const auto mixed = MakeQuantised(kQuantisedQwen2, kMixedTypes);
  ExpectStepsOfTheCpu(MakeQuantised(kQuantisedQwen2, kOneType), DepthPlan::Original(2));
  ExpectStepsOfTheCpu(mixed, DepthPlan::Original(2));
  ExpectStepsOfTheCpu(mixed, DepthPlan::Original(2), many);
}

// More sequences than the products of few tokens take.
TEST_F(TogetherOnGpu, StepsOfManySequencesAgreeWithTheCpu) {
  for (const int64_t count : {19, 33})
    ExpectStepsOfTheCpu(MakeWeights(kQwen2, DType::kBFloat16), DepthPlan::Original(2),
                        std::vector<int64_t>(static_cast<size_t>(count), 2));
}

// Replies end and others begin in the rows of the cache that they leave.
TEST_F(TogetherOnGpu, RepliesAreTheCpus) {
  for (const Shape& shape : {kLlama, kGemma2, kQwen3Next}) {
    const auto weights = MakeWeights(shape, DType::kFloat32);
    std::vector<std::vector<int32_t>> prompts;
    for (const int64_t length : {5, 2, 30, 9, 1, 17, 3}) prompts.push_back(Tokens(*weights, length));
    for (const SamplingOptions& sampling : {SamplingOptions{}, {0.7, 0.9, 20}}) {
      for (const int64_t batch : {2, 5}) {
        std::vector<std::vector<int32_t>> replies[2];
        for (const Device device : {Device::kCpu, Device::kCuda}) {
          Decoder decoder(On(device), weights, DepthPlan::Original(2));
          auto& of = replies[device == Device::kCuda];
          of.resize(prompts.size());
          const std::vector<int32_t> stop = {7, 30};
          GenerateMany(decoder, prompts, {6, sampling, 3, stop, batch},
                       [&](size_t i, const std::vector<int32_t>& reply) { of[i] = reply; });
        }
        EXPECT_EQ(replies[1], replies[0]) << shape.type << ", batch " << batch;
      }
    }
  }
}

// The class is that of five to eight. On the emulator, two blocks share the keys of a token among five, and of eight
// one has all of them. What a sequence leaves in its cache has the same bits.
TEST_F(TogetherOnGpu, ASequenceDoesNotDependOnTheOthersOfItsClass) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [shape, adapted] :
         {std::pair(kQwen2, false), {kQwen2, true}, {kQwen35, false}, {kQwen2Moe, false}}) {
      const auto weights = MakeWeights(shape, dtype);
      const DepthPlan plan = adapted ? Corrected(*weights, 8) : DepthPlan::Original(2);
      std::vector<std::vector<float>> found;
      for (const std::vector<int64_t>& lengths :
           std::vector<std::vector<int64_t>>{{70, 3, 9, 1, 2}, {70, 5, 1, 20, 4, 3}, {70, 2, 3, 1, 9, 5, 6, 4}}) {
        Decoder decoder(On(Device::kCuda), weights, plan);
        Sequences sequences(decoder, lengths);
        for (const int32_t token : {5, 11, 17}) sequences.Step(token);
        found.push_back(Copied(decoder.Forward(std::vector<int32_t>{4}, sequences.caches.front())));
      }
      EXPECT_EQ(found[1], found[0]);
      EXPECT_EQ(found[2], found[0]);
    }
  }
}

TEST_F(TogetherOnGpu, ACacheTakesTheRowsThatAnotherLeft) {
  const auto weights = MakeWeights(kQwen2, DType::kFloat32);
  const DepthPlan plan = DepthPlan::Original(2);
  Decoder decoder(On(Device::kCuda), weights, plan), alone(On(Device::kCuda), weights, plan);
  const std::vector<int32_t> tokens = Tokens(*weights, 12);
  std::vector<std::optional<KvCache>> caches(3);
  for (std::optional<KvCache>& cache : caches) {
    cache.emplace(weights->config, plan, 20);
    decoder.Forward(tokens, *cache);
  }
  // In the gap, in the gap's rest, and behind all others.
  caches[1].reset();
  for (const int64_t capacity : {13, 7, 30}) {
#ifdef SHIFTRT_EMULATED
    const int64_t before = emu::AllocatedBytes();
#endif
    KvCache& cache = *caches.emplace_back(std::in_place, weights->config, plan, capacity);
    decoder.Forward(std::span(tokens).first(5), cache);
#ifdef SHIFTRT_EMULATED
    EXPECT_EQ(emu::AllocatedBytes() > before, capacity == 30);
#endif
  }
  for (std::optional<KvCache>& cache : caches) {
    if (!cache) continue;
    KvCache other(weights->config, plan, cache->capacity());
    alone.Forward(std::span(tokens).first(static_cast<size_t>(cache->size())), other);
    EXPECT_LE(RelativeError(Copied(decoder.Forward(std::vector<int32_t>{4}, *cache)),
                            Copied(alone.Forward(std::vector<int32_t>{4}, other))),
              ManyTolerance(DType::kFloat32));
  }
}

#ifdef SHIFTRT_EMULATED
// The second step of a class records what it launches, and later ones replay it, also after calls of other sizes that
// move no array. The first choice of tokens moves some.
TEST_F(TogetherOnGpu, StepsReplayTheirLaunches) {
  for (const Shape& shape : {kQwen2, kQwen3Next}) {
    const auto weights = MakeWeights(shape, DType::kBFloat16);
    Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(2));
    Sequences sequences(decoder, kLengths);
    const int64_t before = emu::Replays();
    for (const int32_t token : {1, 2, 3, 4}) sequences.Step(token);
    EXPECT_EQ(emu::Replays() - before, 2);
    decoder.Forward(std::vector<int32_t>{4, 5}, sequences.caches.front());
    sequences.Step(6);
    EXPECT_EQ(emu::Replays() - before, 3);
    Batch longer;
    longer.Add(Tokens(*weights, 100));
    decoder.Forward(longer);
    sequences.Step(7);
    EXPECT_EQ(emu::Replays() - before, 3) << "the arrays have moved";
  }
}

// Two norms, four products, the rotation with the cache write, attention and the activation. A gated delta network has
// one product more and, in the place of rotation and attention, the convolution, the rule and the norm of its heads. A
// mixture has the products of the router and of the experts, the choice, the input in float32 and the sum.
TEST_F(TogetherOnGpu, AStepTakesNineLaunchesPerBlock) {
  for (const auto& [shape, expected] : {std::pair(kLlama, 9), {kQwen35, 11}, {kMixtral, 12}}) {
    const auto weights = MakeWeights(shape, DType::kBFloat16);
    const auto launches = [&](int64_t blocks) {
      Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(blocks));
      Sequences sequences(decoder, kLengths);
      sequences.Step(1);
      const int64_t before = emu::Launches();
      sequences.Step(2);
      return emu::Launches() - before;
    };
    EXPECT_EQ(launches(2) - launches(1), expected) << shape.type;
  }
}
#endif

TEST_F(TogetherOnGpu, ANaNAmongTheLogitsIsAnError) {
  const auto weights = std::make_shared<Weights>(*MakeWeights(kQwen2, DType::kFloat32));
  std::vector<float> norm(static_cast<size_t>(weights->config.hidden), 1.0f);
  norm[3] = NAN;
  weights->final_norm.data = norm.data();
  Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(2));
  Sequences sequences(decoder, kLengths);
  EXPECT_THROW(sequences.Step(1), Error);
}

}  // namespace
}  // namespace shiftrt
