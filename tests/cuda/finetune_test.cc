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
  static void ExpectParity(const Shape& shape, const DepthPlan& plan, const FinetuneSettings& wanted) {
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
    FinetuneSettings settings = wanted;
    settings.batch = 2;
    const Schedule schedule = {Decay::kConstant, 0.01, 0, 2};
    const TemporaryDirectory directory;
    const auto run = [&](Device device, const char* checkpoint) {
      const Context context = On(device);
      settings.checkpoint = directory.path() / checkpoint;
      return Finetune({context, model, texts, settings, schedule, {}, {}}).history;
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
  FinetuneSettings settings;
  settings.lora = {.targets = {"q", "down"}, .rank = 3, .alpha = 6, .dropout = 0.2};
  ExpectParity(kQwen2, DepthPlan::Original(2), settings);
}

TEST_F(FinetuneOnGpu, PartialLayersAndTheHeadAgreeWithTheCpu) {
  FinetuneSettings settings;
  settings.method = Method::kPartial;
  settings.layers = "last:1";
  settings.head = true;
  settings.loss = TrainingLoss::kBoth;
  ExpectParity(kQwen2, DepthPlan::Pruned(2, std::vector<int64_t>{0}), settings);
}

// All tensors of a gated delta network, and adapters beside a mixture of experts.
TEST_F(FinetuneOnGpu, OtherBlocksAgreeWithTheCpu) {
  FinetuneSettings settings;
  settings.method = Method::kPartial;
  settings.layers = "last:1";
  ExpectParity(kQwen35, DepthPlan::Original(2), settings);
  FinetuneSettings lora;
  lora.lora = {.targets = {"q", "o"}, .rank = 3, .alpha = 6};
  ExpectParity(kQwen3Next, DepthPlan::Original(2), lora);
}

TEST_F(FinetuneOnGpu, ReplacementsAgreeWithTheCpu) {
  FinetuneSettings settings;
  settings.method = Method::kReplacement;
  settings.replacement = {Halves::kMlp};
  ExpectParity(kQwen2, DepthPlan::Pruned(2, std::vector<int64_t>{0}), settings);
}

}  // namespace
}  // namespace shiftrt
