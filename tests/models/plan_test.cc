// SPDX-License-Identifier: Apache-2.0
// Depth plans as values: built, compared, counted and changed.
#include "models/plan.h"

#include <gtest/gtest.h>

#include "models/weights.h"
#include "runtime/check.h"

namespace shiftrt {
namespace {

std::shared_ptr<const Lra> Adapter(float bias = 0) {
  auto lra = std::make_shared<Lra>();
  lra->a = Matrix<float>::Zeros(4, 4);
  lra->b = Matrix<float>::Zeros(1, 4);
  lra->b(0, 0) = bias;
  return lra;
}

// True if a stage can be visited with these cases.
template <typename... Cases>
concept Complete = requires(const Stage& stage, Cases... cases) {
  stage.Visit(cases...);
};
using OnBlock = decltype([](const BlockStage&) {});
using OnAdapter = decltype([](const AdapterStage&) {});
using OnAny = decltype([](const auto&) {});
static_assert(Complete<OnBlock, OnAdapter> && Complete<OnAdapter, OnBlock>);
static_assert(!Complete<OnBlock> && !Complete<OnAdapter>, "each kind needs its case");
static_assert(!Complete<OnAny>, "a case for whatever comes would hide a new kind");

TEST(Plan, CorrectedPutsEachSiteWhereItsLayersWere) {
  const auto first = Adapter(), second = Adapter();
  const DepthPlan plan =
      DepthPlan::Corrected(7, std::vector<AdapterStage>{{{4, 5}, second}, {{2}, nullptr}, {{0}, first}});
  const DepthPlan expected{
      {AdapterStage{{0}, first}, BlockStage{1}, BlockStage{3}, AdapterStage{{4, 5}, second}, BlockStage{6}}};
  EXPECT_EQ(plan, expected);
  EXPECT_EQ(plan.KeptLayers(), (std::vector<int64_t>{1, 3, 6}));
  EXPECT_EQ(plan.RemovedLayers(7), (std::vector<int64_t>{0, 2, 4, 5}));
  EXPECT_EQ(plan.Uncorrected(), DepthPlan::Pruned(7, std::vector<int64_t>{5, 4, 2, 0}));
  EXPECT_EQ(DepthPlan::Corrected(3, std::vector<int64_t>{2, 0}, std::vector{first, second}),
            (DepthPlan{{AdapterStage{{0}, second}, BlockStage{1}, AdapterStage{{2}, first}}}));
}

TEST(Plan, RefusesSitesThatAreNone) {
  const auto build = [](std::vector<AdapterStage> sites) { DepthPlan::Corrected(4, sites); };
  EXPECT_THROW(build({{{4}, nullptr}}), Error);
  EXPECT_THROW(build({{{-1}, nullptr}}), Error);
  EXPECT_THROW(build({{{1}, nullptr}, {{1}, nullptr}}), Error);
  EXPECT_THROW(build({{{1, 2}, nullptr}, {{2, 3}, nullptr}}), Error);
  EXPECT_THROW(build({{{0, 2}, nullptr}}), Error);
  EXPECT_THROW(DepthPlan::Corrected(4, std::vector<int64_t>{1, 2}, std::vector{Adapter()}), Error);
}

TEST(Plan, EqualityIsOfTheSameTensorsAndAdapters) {
  const auto adapter = Adapter();
  const auto own = std::make_shared<const BlockWeights>();
  const DepthPlan plan{{BlockStage{0}, AdapterStage{{1}, adapter}, BlockStage{.layer = 2, .own = own}}};
  EXPECT_EQ(plan, DepthPlan(plan));
  EXPECT_NE(plan, plan.With(0, BlockStage{0, Halves::kMlp}));
  EXPECT_NE(plan, plan.With(0, BlockStage{1}));
  EXPECT_NE(plan, plan.With(1, AdapterStage{{1}, Adapter()}));
  EXPECT_NE(plan, plan.With(1, std::nullopt));
  EXPECT_NE(plan, plan.With(2, BlockStage{2}));
  EXPECT_EQ(plan.Uncorrected(), (DepthPlan{{BlockStage{0}, BlockStage{2}}}));
  EXPECT_EQ(Stage(BlockStage{2, Halves::kMlp, own}).Uncorrected(), Stage(BlockStage{2, Halves::kMlp}));
}

TEST(Plan, AFingerprintIsOfValues) {
  const float ones[] = {1, 1}, twos[] = {2, 2};
  const auto own = [](const float* data) {
    BlockWeights block;
    block.input_norm = {data, DType::kFloat32, {2}};
    return std::make_shared<const BlockWeights>(block);
  };
  const auto plan = [&](float bias, const float* data, Halves halves = Halves::kBoth) {
    return DepthPlan{
        {BlockStage{0, halves}, AdapterStage{{1}, Adapter(bias)}, BlockStage{.layer = 2, .own = own(data)}}}
        .Fingerprint();
  };
  EXPECT_EQ(plan(1, ones), plan(1, ones)) << "of tensors at other addresses";
  EXPECT_NE(plan(1, ones), plan(2, ones));
  EXPECT_NE(plan(1, ones), plan(1, twos));
  EXPECT_NE(plan(1, ones), plan(1, ones, Halves::kAttention));
  EXPECT_NE(plan(1, ones, Halves::kMlp), plan(1, ones, Halves::kAttention));
}

// Counted by hand: a table of 3 x 2, a norm of 2, and no blocks.
TEST(Plan, AnOutputOfItsOwnTakesThePlaceOfTheModels) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  Weights weights;
  weights.config.vocab = 3;
  weights.config.tied_head = true;
  weights.embedding = weights.head = {values, DType::kFloat32, {3, 2}};
  weights.final_norm = {values, DType::kFloat32, {2}};
  const float others[] = {7, 8, 9, 10, 11, 12};
  const auto output = [&](const float* norm, const float* head) {
    return DepthPlan{{},
                     std::make_shared<const OutputWeights>(
                         OutputWeights{{norm, DType::kFloat32, {2}}, {head, DType::kFloat32, {3, 2}}})};
  };
  const DepthPlan model, head = output(values, others), norm = output(others, values);
  EXPECT_EQ(model.Parameters(weights), 8);
  EXPECT_EQ(head.Parameters(weights), 14) << "a head of its own is not tied";
  EXPECT_EQ(norm.Parameters(weights), 8);
  EXPECT_TRUE(model.TiedHead(weights) && norm.TiedHead(weights) && !head.TiedHead(weights));
  EXPECT_EQ(head.BytesPerToken(weights), model.BytesPerToken(weights));
  EXPECT_EQ(head.Output(weights).head.data, others);
  EXPECT_EQ(model.Output(weights).head.data, values);
  EXPECT_NE(head, output(values, others)) << "the same tensors, not equal ones";
  EXPECT_EQ(head.Fingerprint(), output(values, others).Fingerprint());
  EXPECT_NE(head.Fingerprint(), norm.Fingerprint());
  EXPECT_NE(head.Fingerprint(), model.Fingerprint());
  EXPECT_EQ(head.Uncorrected(), model);
}

TEST(Plan, AStageOfAnotherKindIsRefusedByName) {
  const Stage block = BlockStage{3}, adapter = AdapterStage{{1, 2}, Adapter()};
  EXPECT_EQ(block.block().layer, 3);
  EXPECT_EQ(adapter.adapter().parts.size(), 2u);
  EXPECT_THROW(block.adapter(), Error);
  EXPECT_THROW(adapter.block(), Error);
}

TEST(Plan, FindsTheStageOfALayer) {
  const DepthPlan plan = DepthPlan::Corrected(4, std::vector<AdapterStage>{{{0, 1}, Adapter()}});
  EXPECT_EQ(plan.StageOf(2), 1u);
  EXPECT_EQ(plan.StageOf(3), 2u);
  EXPECT_THROW(plan.StageOf(1), Error);
}

TEST(Plan, OnlyBlocksWithAttentionHaveKeysAndValues) {
  const DepthPlan plan{{BlockStage{0}, BlockStage{1, Halves::kMlp}, BlockStage{2, Halves::kAttention}}};
  EXPECT_EQ(plan.blocks(), 3);
  EXPECT_EQ(plan.attention_blocks(), 2);
  EXPECT_TRUE(plan.RemovedLayers(3).empty()) << "half of a block is left of each";
}

TEST(Plan, NamesOfHalvesComeBack) {
  for (const Halves halves : {Halves::kBoth, Halves::kAttention, Halves::kMlp})
    EXPECT_EQ(ParseHalves(Name(halves)), halves);
  EXPECT_FALSE(ParseHalves("neither"));
}

}  // namespace
}  // namespace shiftrt
