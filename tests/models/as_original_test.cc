// SPDX-License-Identifier: Apache-2.0
// A saved model as the original of the next repair.
#include "models/as_original.h"

#include "tests/models/adapted_fixture.h"

namespace shiftrt {
namespace {

using AsOriginalOf = Adapted;

Batch SomeTokens() {
  Batch batch;
  batch.Add(std::vector<int32_t>{1, 5, 23, 7, 0, 11});
  return batch;
}

Matrix<float> CopyOf(const Rows& rows) {
  const HostRows host = rows.ToHost();
  Matrix<float> copy(rows.count(), rows.hidden());
  for (int64_t i = 0; i < copy.rows(); ++i) std::copy_n(host.view().row(i), copy.cols(), copy.row(i));
  return copy;
}

TEST_F(AsOriginalOf, ComputesWhatThePlanDoes) {
  const Model saved = With(base_, Tuned(base_));
  const Model original = AsOriginal(saved);
  EXPECT_EQ(original.weights->config.layers, 2);
  EXPECT_EQ(original.plan, DepthPlan::Original(2));
  EXPECT_EQ(Logits(original), Logits(saved));
  EXPECT_EQ(Logits(With(saved, OverSaved(original.plan, saved))), Logits(saved));
  EXPECT_NE(original.weights->Fingerprint(), base_.weights->Fingerprint());
  EXPECT_EQ(AsOriginal(With(base_, DepthPlan::Original(3))).weights, base_.weights);
}

// The stream enters the block before its adapter, and the block's update has the adapter's.
TEST_F(AsOriginalOf, AnAdapterIsAPartOfTheBlockBehindIt) {
  const Model saved = With(base_, Tuned(base_)), original = AsOriginal(saved);
  Matrix<float> input, update, output;
  std::vector<Tap> taps = {
      {1, TapPoint::kInput, [&](const Rows& rows, const Batch&) { input = CopyOf(rows); }},
      {1, TapPoint::kUpdate, [&](const Rows& rows, const Batch&) { update = CopyOf(rows); }},
      {1, TapPoint::kOutput, [&](const Rows& rows, const Batch&) { output = CopyOf(rows); }},
  };
  const Batch batch = SomeTokens();
  Decoder decoder(Context::Default(), original.weights, original.plan, std::move(taps));
  const Matrix<float> whole = CopyOf(decoder.Forward(batch));
  Decoder first(Context::Default(), base_.weights, {{BlockStage{0}}});
  const Matrix<float> before = CopyOf(first.Forward(batch));
  ASSERT_EQ(input.size(), before.size());
  for (int64_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(input.span()[i], before.span()[i]);
    EXPECT_EQ(output.span()[i], whole.span()[i]);
    EXPECT_EQ(update.span()[i], whole.span()[i] - before.span()[i]);
  }
  // A pass that resumes before the block runs its adapter, too.
  Decoder resumed(Context::Default(), original.weights, original.plan);
  const std::vector<Stage> rest = {BlockStage{1}};
  const Matrix<float> again = CopyOf(resumed.Resume(batch, Rows(before.view()), rest));
  for (int64_t i = 0; i < again.size(); ++i) EXPECT_EQ(again.span()[i], whole.span()[i]);
}

TEST_F(AsOriginalOf, AnAdapterIsRemovedWithItsBlock) {
  const Model saved = With(base_, {{AdapterStage{{0}, FullAdapter(3)}, BlockStage{1}, BlockStage{2}}});
  const Model original = AsOriginal(saved);
  const std::shared_ptr<const Lra> lra = FullAdapter(9);
  const DepthPlan corrected = DepthPlan::Corrected(2, std::vector<AdapterStage>{{{0}, lra}});
  const DepthPlan over = OverSaved(corrected, saved);
  ASSERT_EQ(over.stages.size(), 2u);
  EXPECT_EQ(over.stages[0].adapter().parts, (std::vector<BlockPart>{0, 1}));
  EXPECT_EQ(over.stages[1], Stage(BlockStage{2}));
  EXPECT_EQ(Logits(With(saved, over)), Logits(With(original, corrected)));
  const std::vector<BlockPart> second = {1}, there = {2};
  EXPECT_EQ(NumbersInSaved(second, saved), there);
  EXPECT_EQ(NumbersInOriginal(there, saved), second);
  const std::vector<BlockPart> gone = {0};
  EXPECT_NE(Refusal([&] { NumbersInOriginal(gone, saved); }).find("has no block 0: it has the blocks 1, 2"),
            std::string::npos);
}

// The tensors of both repairs stay alive with the plan of the second.
TEST_F(AsOriginalOf, TensorsOfTwoStepsComeBack) {
  Model twice;
  std::string expected;
  {
    const Model saved = With(base_, Tuned(base_)), original = AsOriginal(saved);
    const auto block = std::make_shared<OwnBlock>(original.weights->blocks[1]);
    block->Replace(&BlockWeights::q, RandomMatrix(kHidden, kHidden, 40).span());
    const DepthPlan changed = original.plan.With(1, BlockStage{.layer = 1, .own = OwnBlock::Share(block)});
    expected = Logits(With(original, changed));
    twice = With(base_, OverSaved(changed, saved));
  }
  EXPECT_EQ(Logits(twice), expected);
  Save(twice);
  EXPECT_EQ(Logits(OpenModel(saved_.string())), expected);
  EXPECT_EQ(ReadSaved()["base"], fs::absolute(base_.directory).lexically_normal().string());
}

TEST_F(AsOriginalOf, WhatCannotBePrunedFurtherIsNamed) {
  const auto refusal = [&](const DepthPlan& plan) { return Refusal([&] { AsOriginal(With(base_, plan)); }); };
  EXPECT_NE(refusal(HalfBlocks()).find("of some blocks one half runs"), std::string::npos);
  EXPECT_NE(refusal({{BlockStage{0}, BlockStage{1}, AdapterStage{{2}, FullAdapter(3)}}}).find("after its last block"),
            std::string::npos);
  Save(Corrected(), /*with_weights=*/true);
  EXPECT_NE(Refusal([&] { AsOriginal(OpenModel(saved_.string())); }).find("saved with its weights"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt
