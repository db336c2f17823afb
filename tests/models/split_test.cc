// SPDX-License-Identifier: Apache-2.0
#include "models/split.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/weights.h"
#include "runtime/check.h"

namespace shiftrt {
namespace {

// Blocks of 4 * 8 * 8 + 3 * 8 * 16 + 2 * 8 = 656 elements, of which the attention has 264.
ModelConfig Config(int64_t layers, int64_t vocab, bool tied = true) {
  ModelConfig config;
  config.family = "llama";
  config.hidden = 8;
  config.intermediate = 16;
  config.layers = layers;
  config.heads = config.kv_heads = 2;
  config.head_dim = 4;
  config.vocab = vocab;
  config.tied_head = tied;
  return config;
}

std::vector<int64_t> Begins(const std::vector<ModelShare>& shares) {
  std::vector<int64_t> begins;
  begins.reserve(shares.size());
  for (const ModelShare& share : shares) begins.push_back(share.begin);
  return begins;
}

using Layers = std::vector<int64_t>;

TEST(Split, CutsByTheBytesOfBlocksAndHead) {
  const auto cut = [](int64_t layers, int64_t vocab, int64_t processes) {
    return Begins(CutModel(Config(layers, vocab), DepthPlan::Original(layers), processes));
  };
  EXPECT_EQ(cut(8, 1, 1), (Layers{0}));
  EXPECT_EQ(cut(8, 1, 2), (Layers{0, 4}));
  EXPECT_EQ(cut(8, 1, 4), (Layers{0, 2, 4, 6}));
  EXPECT_EQ(cut(8, 82, 3), (Layers{0, 3, 6}));   // a head of one block: 3, 3, 2 + 1
  EXPECT_EQ(cut(8, 738, 3), (Layers{0, 4, 8}));  // a head of nine blocks stands alone
}

TEST(Split, CoversTheModelInOrder) {
  for (const int64_t vocab : {1, 82, 400, 2000})
    for (int64_t processes = 1; processes <= 10; ++processes) {
      const std::vector<ModelShare> shares = CutModel(Config(9, vocab), DepthPlan::Original(9), processes);
      ASSERT_EQ(std::ssize(shares), processes);
      EXPECT_EQ(shares.front().begin, 0);
      EXPECT_EQ(shares.back().end, 9);
      for (int64_t i = 0; i < processes; ++i) {
        EXPECT_EQ(shares[i].first, i == 0);
        EXPECT_EQ(shares[i].last, i + 1 == processes);
        EXPECT_EQ(shares[i].begin, i == 0 ? 0 : shares[i - 1].end);
        EXPECT_TRUE(shares[i].begin < shares[i].end || i + 1 == processes);
      }
    }
}

// No other cut into three has a smaller largest share.
TEST(Split, NoCutIsMoreBalanced) {
  const ModelConfig config = Config(9, 200);
  const DepthPlan plan = DepthPlan::Pruned(9, std::vector<BlockPart>{1, {3, Halves::kAttention}, 4, {7, Halves::kMlp}});
  const auto largest = [&](const std::vector<ModelShare>& shares) {
    int64_t most = 0;
    for (ModelShare share : shares) {
      share.first = false;  // the embedding does not count
      most = std::max(most, WeightBytes(config, plan, share, DType::kBFloat16));
    }
    return most;
  };
  const int64_t found = largest(CutModel(config, plan, 3));
  for (int64_t a = 1; a < 9; ++a)
    for (int64_t b = a + 1; b <= 9; ++b)
      EXPECT_LE(found, largest({{0, a, true, false}, {a, b, false, false}, {b, 9, false, true}})) << a << " " << b;
}

TEST(Split, RemovedLayersBelongToTheProcessBefore) {
  const DepthPlan plan = DepthPlan::Pruned(10, Layers{0, 3, 4, 5, 9});
  const std::vector<ModelShare> shares = CutModel(Config(10, 1), plan, 5);  // 1, 2, 6, 7, 8
  EXPECT_EQ(Begins(shares), (Layers{0, 2, 6, 7, 8}));
  EXPECT_TRUE(shares[1].Has(5) && !shares[2].Has(5));
  EXPECT_EQ(shares.back().end, 10);
}

TEST(Split, SharesTogetherHaveEveryByteOnceAndATiedHeadTwice) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = Config(7, 50, tied);
    int64_t whole = 0;
    for (const auto& [name, shape] : TensorShapes(config)) {
      int64_t elements = 1;
      for (const int64_t side : shape) elements *= side;
      whole += 4 * elements;
    }
    const DepthPlan plan = DepthPlan::Original(7);
    EXPECT_EQ(WeightBytes(config, plan, {0, 7, true, true}, DType::kFloat32), whole);
    int64_t sum = 0;
    for (const ModelShare& share : CutModel(config, plan, 4)) sum += WeightBytes(config, plan, share, DType::kFloat32);
    EXPECT_EQ(sum, whole + (tied ? 4 * 50 * 8 : 0));
  }
}

TEST(Split, RefusesMoreProcessesThanThereAreBlocks) {
  EXPECT_EQ(CutModel(Config(3, 5), DepthPlan::Original(3), 4).back(), (ModelShare{3, 3, false, true}));
  EXPECT_THROW(CutModel(Config(3, 5), DepthPlan::Original(3), 5), UsageError);
  EXPECT_THROW(CutModel(Config(3, 5), DepthPlan::Original(3), 0), UsageError);
}

// Eight blocks of 656 elements, a head and an embedding of 82 * 8: ten times 2.6 kB in float32.
TEST(Split, IsAsSmallAsTheMemoryOfTheHostsAllows) {
  const ModelConfig config = Config(8, 82);
  const DepthPlan plan = DepthPlan::Original(8);
  constexpr int64_t kBlock = 2624;
  const auto choose = [&](bool mapped, const std::vector<ProcessMemory>& processes) {
    const auto bytes = [&](const ModelShare& share) { return WeightBytes(config, plan, share, DType::kFloat32); };
    return ChooseSplit({config, plan, bytes, mapped}, processes);
  };
  const auto on = [](const std::vector<std::string>& hosts, int64_t bytes) {
    std::vector<ProcessMemory> processes;
    processes.reserve(hosts.size());
    for (const std::string& host : hosts) processes.push_back({host, bytes});
    return processes;
  };
  const std::vector<std::string> one = {"a", "a", "a", "a"}, two = {"a", "a", "b", "b"}, four = {"a", "b", "c", "d"};
  // A whole model is 9 blocks and the norm, and two processes hold 10 of them: a tied head is on both.
  EXPECT_EQ(choose(true, on(one, 10 * kBlock)), 1);
  EXPECT_EQ(choose(false, on(one, 37 * kBlock)), 1);
  EXPECT_EQ(choose(false, on(one, 21 * kBlock)), 2);
  EXPECT_EQ(choose(false, on(one, 11 * kBlock)), 4);
  EXPECT_EQ(choose(true, on(two, 10 * kBlock)), 1);
  EXPECT_EQ(choose(true, on(two, 7 * kBlock)), 4);
  EXPECT_EQ(choose(true, on(four, 7 * kBlock)), 2);
  EXPECT_EQ(choose(false, on(four, 4 * kBlock)), 4);
  std::vector<ProcessMemory> uneven = on(four, 10 * kBlock);
  uneven[2].bytes = 6 * kBlock;
  EXPECT_EQ(choose(true, uneven), 2);
  EXPECT_THROW(choose(true, on(one, 8 * kBlock)), UsageError);
  EXPECT_THROW(choose(false, on(four, 2 * kBlock)), UsageError);
}

}  // namespace
}  // namespace shiftrt
