// SPDX-License-Identifier: Apache-2.0
#include "train/parameters.h"

#include "runtime/elements.h"
#include "tests/models/fixtures.h"
#include "tests/runtime/refusal.h"
#include "tests/shift/small_model.h"

namespace shiftrt::test {
namespace {

using Ranges = std::vector<ParameterRange>;

Matrix<float> Random01(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix<float> m(rows, cols);
  for (float& x : m.span()) x = static_cast<float>(random.Uniform());
  return m;
}

class ParametersTest : public SmallModel {
 protected:
  // Layers 1 and 4 removed; a low-rank adapter for the one, a full one for the other.
  ParametersTest() {
    auto low = std::make_shared<Lra>(), full = std::make_shared<Lra>();
    low->p = Random01(kWidth, 3, 1);
    low->q = Random01(3, kWidth, 2);
    low->b = Random01(1, kWidth, 3);
    full->a = Random01(kWidth, kWidth, 4);
    full->b = Random01(1, kWidth, 5);
    const std::vector<AdapterStage> sites = {{{1}, low}, {{4}, full}};
    plan_ = DepthPlan::Corrected(kLayers, sites);
  }
  Parameters Make(const FinetuneSettings& settings) const { return {*model_.weights, plan_, settings}; }
  std::string Refused(const FinetuneSettings& settings) const {
    return Refusal([&] { Make(settings); });
  }

  DepthPlan plan_;
};

TEST_F(ParametersTest, LoraOfEveryProjectionOfEveryKeptBlock) {
  FinetuneSettings settings;
  settings.lora.rank = 2;
  const Parameters parameters = Make(settings);
  EXPECT_EQ(parameters.slices().size(), size_t{4 * 7 * 2});
  EXPECT_EQ(parameters.ranges(), (Ranges{{TrainedPart::kMethod, true, 0, parameters.count()}}));
  EXPECT_EQ(parameters.slices()[0].name, "layers.0.self_attn.q_proj.lora_A");
  EXPECT_EQ(parameters.slices()[1].name, "layers.0.self_attn.q_proj.lora_B");
  EXPECT_EQ(parameters.slices().back().name, "layers.5.mlp.down_proj.lora_B");
  // q, o: 16 x 16; k, v: 8 x 16; gate, up, down: 24 and 16.
  EXPECT_EQ(parameters.count(), 4 * 2 * (2 * 32 + 2 * 24 + 3 * 40));
  EXPECT_EQ(parameters.bytes(), 16 * parameters.count());
  const std::vector<float> values = parameters.Initial(*model_.weights, plan_);
  for (const Slice& slice : parameters.slices()) {
    double largest = 0, sum = 0;
    for (int64_t i = 0; i < slice.size(); ++i) {
      largest = std::max<double>(largest, std::abs(values[slice.offset + i]));
      sum += values[slice.offset + i];
    }
    if (slice.place == Slice::Place::kLoraB) {
      EXPECT_EQ(largest, 0) << slice.name;
    } else {
      const double bound = 1 / std::sqrt(static_cast<double>(slice.cols));
      EXPECT_LE(largest, bound) << slice.name;
      EXPECT_GT(largest, 0.8 * bound) << slice.name;
      EXPECT_LT(std::abs(sum), bound * static_cast<double>(slice.size()) / 2) << slice.name;
    }
  }
  settings.seed = 1;
  EXPECT_NE(Make(settings).Initial(*model_.weights, plan_), values);

  const std::optional<Lora> lora = parameters.Factors(plan_, values);
  ASSERT_TRUE(lora.has_value());
  EXPECT_EQ(lora->factors.size(), size_t{28});
  EXPECT_EQ(lora->factors.back().layer, 5);
  EXPECT_EQ(lora->factors.back().a.rows(), 2);
  EXPECT_EQ(lora->factors.back().b.rows(), kWidth);
  EXPECT_EQ(lora->factors.back().a(1, 3), values[parameters.slices()[54].offset + 24 + 3]);
  EXPECT_EQ(parameters.Tuned(*model_.weights, plan_, values), plan_);

  settings.lora.targets = {"v"};
  settings.adapters = true;
  const Parameters few = Make(settings);
  EXPECT_EQ(few.slices().size(), size_t{4 * 2 + 3 + 2});
  const int64_t lora_end = few.slices()[8].offset, biases = few.count() - 2 * kWidth;
  EXPECT_EQ(few.ranges(), (Ranges{{TrainedPart::kMethod, true, 0, lora_end},
                                  {TrainedPart::kAdapters, true, lora_end, biases},
                                  {TrainedPart::kAdapters, false, biases, few.count()}}));
  EXPECT_EQ(few.slices()[8].name, "adapters.0.P");
  EXPECT_EQ(few.slices().back().name, "adapters.1.b");
}

TEST_F(ParametersTest, LoraLeavesOutTheGateThatAModelLacks) {
  const auto weights = GoldenWeights("nemotron");
  FinetuneSettings settings;
  settings.lora.rank = 2;
  const Parameters parameters(*weights, DepthPlan::Original(weights->config.layers), settings);
  EXPECT_EQ(std::ssize(parameters.slices()), weights->config.layers * 6 * 2);
  for (const Slice& slice : parameters.slices()) EXPECT_EQ(slice.name.find("gate"), std::string::npos) << slice.name;
}

TEST_F(ParametersTest, PartialLayersKeepTheirValues) {
  FinetuneSettings settings;
  settings.method = Method::kPartial;
  settings.layers = "last:1";
  settings.head = true;
  const Parameters parameters = Make(settings);
  EXPECT_EQ(parameters.slices().size(), size_t{7 + 1 + 2});
  const int64_t head = parameters.slices()[7].offset, norms = parameters.count() - 2 * kWidth;
  EXPECT_EQ(parameters.ranges(), (Ranges{{TrainedPart::kMethod, true, 0, head},
                                         {TrainedPart::kHead, true, head, norms},
                                         {TrainedPart::kMethod, false, norms, parameters.count()}}));
  std::vector<float> values = parameters.Initial(*model_.weights, plan_);
  const BlockWeights& block = model_.weights->blocks[5];
  const auto at = [&](const std::string& name) {
    for (const Slice& slice : parameters.slices())
      if (slice.name == name) return slice;
    ADD_FAILURE() << name;
    return Slice();
  };
  WithElements(block.down, [&](const auto* from) {
    EXPECT_EQ(values[at("layers.5.mlp.down_proj.weight").offset + 17], static_cast<float>(from[17]));
  });

  values[at("layers.5.mlp.down_proj.weight").offset + 17] = 42;
  values[at("layers.5.input_layernorm.weight").offset + 3] = 43;
  values[at("lm_head.weight").offset + 5] = 44;
  const DepthPlan tuned = parameters.Tuned(*model_.weights, plan_, values);
  const BlockWeights& own = *tuned.stages[tuned.StageOf(5)].block().own;
  EXPECT_EQ(static_cast<const float*>(own.down.data)[17], 42);
  EXPECT_EQ(static_cast<const float*>(own.input_norm.data)[3], 43);
  EXPECT_EQ(own.down.shape, block.down.shape);
  EXPECT_EQ(own.input_norm.shape, block.input_norm.shape);
  EXPECT_EQ(static_cast<const float*>(tuned.Output(*model_.weights).head.data)[5], 44);
  EXPECT_EQ(tuned.stages[tuned.StageOf(3)].block().own, nullptr);

  for (const auto& [layers, blocks] :
       std::vector<std::pair<std::string, size_t>>{{"first:2", 2}, {"0,2-3", 3}, {"all", 4}}) {
    settings.layers = layers;
    EXPECT_EQ(Make(settings).slices().size(), blocks * 9 + 1) << layers;
  }
}

TEST_F(ParametersTest, TrainedTensorsKeepTheTypeOfTheModel) {
  const auto weights = GoldenWeights("llama3_tied", DType::kBFloat16);
  const DepthPlan plan = DepthPlan::Original(weights->config.layers);
  FinetuneSettings settings;
  settings.method = Method::kPartial;
  settings.layers = "0";
  settings.head = true;
  const Parameters parameters(*weights, plan, settings);
  const std::vector<float> before = parameters.Initial(*weights, plan);
  std::vector<float> values = before;
  const DepthPlan same = parameters.Tuned(*weights, plan, values);
  EXPECT_EQ(parameters.RoundingError(*weights, plan, values, same), 0);

  // The steps of bfloat16 at 1 are 2^-7 wide: 1 + 2^-9 is rounded to 1, and the head's value is exact.
  for (const Slice& slice : parameters.slices()) {
    if (slice.name == "layers.0.mlp.down_proj.weight") values[slice.offset + 17] = 1 + 0x1p-9f;
    if (slice.name == "lm_head.weight") values[slice.offset + 5] = 1.5f;
  }
  const DepthPlan tuned = parameters.Tuned(*weights, plan, values);
  const TensorView down = tuned.stages[0].block().own->down, head = tuned.Output(*weights).head;
  ASSERT_EQ(down.dtype, DType::kBFloat16);
  ASSERT_EQ(head.dtype, DType::kBFloat16);
  EXPECT_EQ(static_cast<float>(static_cast<const BFloat16*>(down.data)[17]), 1);
  EXPECT_EQ(static_cast<float>(static_cast<const BFloat16*>(head.data)[5]), 1.5f);
  double change = 0;
  for (size_t i = 0; i < values.size(); ++i) change += std::pow(static_cast<double>(values[i]) - before[i], 2);
  EXPECT_NEAR(parameters.RoundingError(*weights, plan, values, tuned), 0x1p-9 / std::sqrt(change), 1e-12);

  values[0] = std::numeric_limits<float>::max();
  EXPECT_NE(Refusal([&] { parameters.Tuned(*weights, plan, values); }).find("which is beyond bfloat16"),
            std::string::npos);
}

TEST_F(ParametersTest, AdaptersAlone) {
  FinetuneSettings settings;
  settings.method = Method::kAdapters;
  const Parameters parameters = Make(settings);
  EXPECT_EQ(parameters.count(), 2 * 3 * kWidth + kWidth * kWidth + 2 * kWidth);
  std::vector<float> values = parameters.Initial(*model_.weights, plan_);
  EXPECT_EQ(values[0], plan_.Adapters()[0]->lra->p(0, 0));
  values[0] = 7;
  const DepthPlan tuned = parameters.Tuned(*model_.weights, plan_, values);
  EXPECT_EQ(tuned.Adapters()[0]->lra->p(0, 0), 7);
  EXPECT_EQ(tuned.Adapters()[0]->lra->p(0, 1), plan_.Adapters()[0]->lra->p(0, 1));
  EXPECT_EQ(tuned.Adapters()[1]->lra->a(3, 4), plan_.Adapters()[1]->lra->a(3, 4));
}

TEST_F(ParametersTest, ViewsLieWhereTheSlicesSay) {
  FinetuneSettings settings;
  settings.lora = {{"k"}, 2, 6, 0.25};
  settings.adapters = true;
  const Parameters parameters = Make(settings);
  const DeviceMemory values = DeviceMemory::OnHost(parameters.count()),
                     gradients = DeviceMemory::OnHost(parameters.count());
  const TrainedParameters trained = parameters.Views(plan_, values, gradients);
  EXPECT_EQ(trained.lora.scale, 3);
  EXPECT_EQ(trained.lora.dropout, 0.25f);
  ASSERT_EQ(trained.stages.size(), plan_.stages.size());
  const Slice& b = parameters.slices()[1];
  const Parameter& view = trained.stages[b.stage].loras[b.tensor].b;
  EXPECT_EQ(view.value.host().data, values.all().host().data + b.offset);
  EXPECT_EQ(view.gradient.host().data, gradients.all().host().data + b.offset);
  EXPECT_EQ(view.value.rows, 8);
  EXPECT_EQ(view.value.cols, 2);
  EXPECT_EQ(trained.LowestStage(plan_.stages.size()), size_t{0});
  EXPECT_EQ(trained.stages[1].a.value.host().data, nullptr);
  EXPECT_NE(trained.stages[1].p.value.host().data, nullptr);
}

TEST_F(ParametersTest, WhatCannotBeTrainedIsRefusedByName) {
  FinetuneSettings settings;
  settings.lora.rank = 9;
  EXPECT_NE(Refused(settings).find("lora.rank: 9 is above the width of self_attn.k_proj, which is 8 x 16"),
            std::string::npos)
      << Refused(settings);
  settings.lora.rank = 0;
  EXPECT_NE(Refused(settings).find("lora.rank"), std::string::npos);
  settings.lora = {{"q", "w"}};
  EXPECT_NE(Refused(settings).find("\"w\" is not a projection"), std::string::npos);
  settings.method = Method::kPartial;
  for (const auto& [layers, message] :
       std::vector<std::pair<std::string, std::string>>{{"last:5", "blocks of 4 layers only"},
                                                        {"0,4", "no block of layer 4"},
                                                        {"2-1", "2-1"},
                                                        {"last:x", "last:N"},
                                                        {"", "neither"},
                                                        {"last:0", "nothing to train"}}) {
    settings.layers = layers;
    EXPECT_NE(Refused(settings).find(message), std::string::npos) << layers << ": " << Refused(settings);
  }
  settings.method = Method::kAdapters;
  plan_ = DepthPlan::Original(kLayers);
  EXPECT_NE(Refused(settings).find("no adapters"), std::string::npos);
  EXPECT_NE(Refusal([] { ParseMethod("full"); }).find("known: lora"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt::test
