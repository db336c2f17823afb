// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/merge.h"

#include "runtime/check.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

constexpr int64_t kSide = 7;

Matrix<float> RandomMatrix(int64_t rows, int64_t cols, Random& random) {
  Matrix<float> m(rows, cols);
  for (float& x : m.span()) x = static_cast<float>(random.Uniform() - 0.5);
  return m;
}

// Rank 0: a full adapter.
std::shared_ptr<const Lra> RandomLra(int64_t rank, Random& random) {
  auto lra = std::make_shared<Lra>();
  if (rank == 0) {
    lra->a = RandomMatrix(kSide, kSide, random);
  } else {
    lra->p = RandomMatrix(kSide, rank, random);
    lra->q = RandomMatrix(rank, kSide, random);
  }
  lra->b = RandomMatrix(1, kSide, random);
  return lra;
}

// h += (h P) Q + b or h A + b, in float64.
std::vector<double> Apply(const Lra& lra, const std::vector<double>& h) {
  std::vector<double> out = h;
  for (int64_t j = 0; j < kSide; ++j) {
    out[j] += lra.b(0, j);
    for (int64_t i = 0; i < kSide; ++i) {
      if (!lra.low_rank()) out[j] += h[i] * lra.a(i, j);
      for (int64_t r = 0; lra.low_rank() && r < lra.rank(); ++r)
        out[j] += h[i] * static_cast<double>(lra.p(i, r)) * lra.q(r, j);
    }
  }
  return out;
}

std::vector<double> ApplyAdapters(const DepthPlan& plan, std::vector<double> h) {
  for (const AdapterStage* adapter : plan.Adapters()) h = Apply(*adapter->lra, h);
  return h;
}

// Six layers, 1, 2, 3 and 5 replaced by adapters of these ranks.
DepthPlan MakePlan(std::vector<int64_t> ranks) {
  Random random(9);
  std::vector<std::shared_ptr<const Lra>> adapters;
  for (int64_t rank : ranks) adapters.push_back(RandomLra(rank, random));
  return DepthPlan::Corrected(6, std::vector<int64_t>{1, 2, 3, 5}, adapters);
}

void ExpectSameMap(const DepthPlan& merged, const DepthPlan& plan) {
  Random random(10);
  for (int trial = 0; trial < 5; ++trial) {
    std::vector<double> h(kSide);
    for (double& x : h) x = random.Normal();
    EXPECT_LT(test::RelativeError(ApplyAdapters(merged, h), ApplyAdapters(plan, h)), 1e-6);
  }
}

const AdapterStage& Adapter(const DepthPlan& plan, size_t stage) { return plan.stages.at(stage).adapter(); }

TEST(Merge, FullIsTheSequenceOfItsSites) {
  for (const std::vector<int64_t>& ranks : {std::vector<int64_t>{0, 0, 0, 0}, {2, 1, 3, 2}, {0, 2, 1, 0}}) {
    const DepthPlan plan = MakePlan(ranks), merged = MergeAdapters(plan, Merge::kFull);
    ASSERT_EQ(merged.stages.size(), 4u);
    EXPECT_EQ(Adapter(merged, 1).parts, (std::vector<BlockPart>{1, 2, 3}));
    EXPECT_FALSE(Adapter(merged, 1).lra->low_rank());
    EXPECT_EQ(Adapter(merged, 3).lra, Adapter(plan, 5).lra);  // a run of one is left as it is
    EXPECT_EQ(merged.KeptLayers(), plan.KeptLayers());
    ExpectSameMap(merged, plan);
  }
}

TEST(Merge, LowRankIsTheSequenceOfItsSitesAndStaysFactored) {
  const DepthPlan plan = MakePlan({2, 1, 3, 2}), merged = MergeAdapters(plan, Merge::kLowRank);
  ASSERT_EQ(merged.stages.size(), 4u);
  EXPECT_TRUE(Adapter(merged, 1).lra->low_rank());
  EXPECT_EQ(Adapter(merged, 1).lra->rank(), 6);
  EXPECT_EQ(Adapter(merged, 1).parts, (std::vector<BlockPart>{1, 2, 3}));
  ExpectSameMap(merged, plan);
}

TEST(Merge, LowRankFallsBackToFullForARunWithAFullAdapter) {
  const DepthPlan plan = MakePlan({2, 0, 3, 2}), merged = MergeAdapters(plan, Merge::kLowRank);
  EXPECT_FALSE(Adapter(merged, 1).lra->low_rank());
  EXPECT_TRUE(Adapter(merged, 3).lra->low_rank());
  ExpectSameMap(merged, plan);
}

TEST(Merge, HalfABlockPartsTwoRuns) {
  const DepthPlan plan = MakePlan({2, 1, 3, 2});
  DepthPlan parted = plan;
  parted.stages.insert(parted.stages.begin() + 2, BlockStage{1, Halves::kMlp});
  const DepthPlan merged = MergeAdapters(parted, Merge::kFull);
  ASSERT_EQ(merged.stages.size(), 6u);
  EXPECT_EQ(merged.stages[1], plan.stages[1]);
  EXPECT_EQ(merged.stages[2], Stage(BlockStage{1, Halves::kMlp}));
  EXPECT_EQ(Adapter(merged, 3).parts, (std::vector<BlockPart>{2, 3}));
}

TEST(Merge, OffLeavesThePlan) { EXPECT_EQ(MergeAdapters(MakePlan({1, 1, 1, 1}), Merge::kOff).stages.size(), 6u); }

TEST(Merge, Parses) {
  for (const Merge merge : {Merge::kOff, Merge::kFull, Merge::kLowRank}) EXPECT_EQ(ParseMerge(Name(merge)), merge);
  EXPECT_THROW(ParseMerge("low-rank"), UsageError);
}

}  // namespace
}  // namespace shiftrt
