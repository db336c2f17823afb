// SPDX-License-Identifier: Apache-2.0
// Counts what inference of many tokens launches per block, without the products of cuBLASLt, which the emulator does
// not count.
#include <gtest/gtest.h>

#include "kernels/emulated/machine.h"
#include "tests/cuda/models.h"

namespace shiftrt {
namespace {

struct Setting {
  bool branches = false;            // a third sequence continues the second
  bool cached = false;              // one sequence that continues a cache
  std::vector<TapPoint> taps = {};  // tapped in every block
};

int64_t Launches(const std::shared_ptr<const Weights>& weights, int64_t blocks, const Setting& setting) {
  DepthPlan plan;
  std::vector<Tap> taps;
  for (int64_t layer = 0; layer < blocks; ++layer) {
    plan.stages.emplace_back(BlockStage{layer});
    for (const TapPoint point : setting.taps) taps.push_back({layer, point, [](const Rows&, const Batch&) {}});
  }
  const std::vector<int32_t> tokens(9, 3);
  Batch batch;
  for (int sequence = 0; sequence < 2; ++sequence) batch.Add(tokens);
  if (setting.branches) batch.Add(std::span(tokens).first(5), 1);
  Decoder decoder(On(Device::kCuda), weights, plan, taps);
  KvCache cache(weights->config, plan, 32);
  const auto forward = [&] {
    if (setting.cached) {
      decoder.Forward(tokens, cache);
    } else {
      decoder.Forward(batch);
    }
  };
  forward();  // uploads the weights
  const int64_t before = emu::Launches();
  forward();
  return emu::Launches() - before;
}

int64_t LaunchesPerBlock(const std::shared_ptr<const Weights>& weights, const Setting& setting) {
  return Launches(weights, 2, setting) - Launches(weights, 1, setting);
}

// The norms before both halves, heads (norms, RoPE, the write into the cache), attention and activation are a
// launch each. Updates with a norm or a factor take one more in each half. A norm of all heads together is one more; a
// norm that both halves share is one less.
TEST(ManyTokensCosts, LaunchesPerBlockAreAsFewAsTheStepsOfEveryFamily) {
  struct Family {
    const Shape& shape;
    int64_t launches, tapped;
  };
  // Tapped, the sum of both updates is a launch, and so is each of their biases; in a parallel block the attention's
  // update is added before the MLP's is pending.
  for (const auto& [shape, launches, tapped] :
       {Family{kQwen2, 5, 6}, Family{kQwen3, 5, 6}, Family{kPhi3, 5, 6}, Family{kGemma2, 7, 8},
        Family{kStarcoder2, 5, 8}, Family{kNemotron, 5, 6}, Family{kCohere2, 4, 6}, Family{kGemma3, 7, 8},
        Family{kOlmo2, 8, 9}, Family{kSmolLm3, 5, 6}, Family{kGranite, 7, 8}, Family{kGlm4, 7, 8}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
      const auto weights = MakeWeights(shape, dtype);
      EXPECT_EQ(LaunchesPerBlock(weights, {}), launches);
      EXPECT_EQ(LaunchesPerBlock(weights, {.cached = true}), launches);
      EXPECT_EQ(LaunchesPerBlock(weights, {.branches = true}), launches + 2) << "keys and values are gathered";
      EXPECT_EQ(LaunchesPerBlock(weights, {.taps = {TapPoint::kUpdate}}), tapped);
    }
  }
}

}  // namespace
}  // namespace shiftrt
