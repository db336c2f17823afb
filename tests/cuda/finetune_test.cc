// SPDX-License-Identifier: Apache-2.0
// Compares fine-tuning on the device with fine-tuning on the CPU: on the emulator and, if there is one, on a GPU.
#include "train/finetune.h"

#include <gtest/gtest.h>

#include "runtime/random.h"
#include "tests/cuda/models.h"

namespace shiftrt {
namespace {

class FinetuneOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::WhyUnavailable().empty()) GTEST_SKIP() << gpu::WhyUnavailable();
  }

  // Two steps of two short sequences on each device, from `plan`.
  static void ExpectParity(const Shape& shape, const DepthPlan& plan, const FinetuneOptions& wanted) {
    Model model;
    model.name = "a test";
    model.weights = MakeWeights(shape, DType::kFloat32);
    model.plan = plan;
    TrainingTexts texts;
    texts.hash = "h";
    Random random(3);
    for (const int64_t length : {5, 7, 4, 6}) {
      std::vector<int32_t> tokens(length);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(shape.vocab));
      texts.training.Add(tokens, 1);
      if (length == 5) texts.validation.Add(tokens, 2);
    }
    FinetuneOptions options = wanted;
    options.training.schedule = {Decay::kConstant, 0.01, 0, 2};
    options.training.batch = 2;
    const TemporaryDirectory directory;
    const auto run = [&](Device device, const char* checkpoint) {
      const Context context = On(device);
      return Finetune({context, model, texts, options, directory.path() / checkpoint, {}, {}}).history;
    };
    const TrainingHistory here = run(Device::kCpu, "here"), there = run(Device::kCuda, "there");
    ASSERT_EQ(there.losses.size(), here.losses.size());
    for (size_t i = 0; i < here.losses.size(); ++i) EXPECT_NEAR(there.losses[i], here.losses[i], 2e-4) << "step " << i;
    ASSERT_EQ(there.validations.size(), here.validations.size());
    for (size_t i = 0; i < here.validations.size(); ++i)
      EXPECT_NEAR(there.validations[i].loss, here.validations[i].loss, 2e-4) << "validation " << i;
    EXPECT_GT(std::abs(here.validations.back().loss - here.validations.front().loss), 2e-3) << "nothing was learnt";
  }
};

TEST_F(FinetuneOnGpu, LoraAgreesWithTheCpu) {
  FinetuneOptions options;
  options.trainable.lora = {.targets = {"q", "down"}, .rank = 3, .alpha = 6, .dropout = 0.2};
  ExpectParity(kQwen2, DepthPlan::Original(2), options);
}

TEST_F(FinetuneOnGpu, PartialLayersAndTheHeadAgreeWithTheCpu) {
  FinetuneOptions options;
  options.trainable.method = Method::kPartial;
  options.trainable.layers = "last:1";
  options.trainable.head = true;
  options.loss = ParseLoss("both");
  ExpectParity(kQwen2, DepthPlan::Pruned(2, std::vector<int64_t>{0}), options);
}

TEST_F(FinetuneOnGpu, ReplacementsAgreeWithTheCpu) {
  FinetuneOptions options;
  options.trainable.method = Method::kReplacement;
  options.replacement.halves = Halves::kMlp;
  ExpectParity(kQwen2, DepthPlan::Pruned(2, std::vector<int64_t>{0}), options);
}

}  // namespace
}  // namespace shiftrt
