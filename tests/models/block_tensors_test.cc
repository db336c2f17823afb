// The table of a block's tensors: every member once, shapes as checkpoints have them, halves that add up.
#include "models/block_tensors.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

const BlockTensor& Row(const std::string& name) {
  for (const BlockTensor& row : BlockTensors())
    if (row.name == name) return row;
  throw std::out_of_range(name);
}

TEST(BlockTensors, EveryMemberHasOneRow) {
  BlockWeights block;
  std::set<const TensorView*> members;
  std::set<std::string> names;
  for (const BlockTensor& row : BlockTensors()) {
    EXPECT_TRUE(members.insert(&(block.*row.member)).second) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.half == Halves::kAttention || row.half == Halves::kMlp) << row.name;
    EXPECT_EQ(row.input != Axis::kNone, row.kind == BlockTensor::Kind::kMatrix) << row.name;
  }
  EXPECT_EQ(members.size() * sizeof(TensorView), sizeof(BlockWeights));
}

TEST(BlockTensors, ShapesFollowTheConfiguration) {
  ModelConfig config;
  config.hidden = 6;
  config.intermediate = 10;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 3;
  config.qkv_bias = true;
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(Row("self_attn.q_proj.weight").Shape(config), (Shape{12, 6}));
  EXPECT_EQ(Row("self_attn.v_proj.weight").Shape(config), (Shape{6, 6}));
  EXPECT_EQ(Row("self_attn.o_proj.weight").Shape(config), (Shape{6, 12}));
  EXPECT_EQ(Row("self_attn.k_proj.bias").Shape(config), (Shape{6}));
  EXPECT_EQ(Row("mlp.down_proj.weight").Shape(config), (Shape{6, 10}));
  EXPECT_EQ(Row("post_attention_layernorm.weight").Shape(config), (Shape{6}));
  EXPECT_EQ(Row("self_attn.o_proj.bias").Shape(config), Shape());
  EXPECT_EQ(Row("self_attn.q_norm.weight").Shape(config), Shape());
}

// Biases, norms of heads and a tied head: what any of them adds to is counted once, in its half.
TEST(BlockTensors, HalvesOfABlockAddUp) {
  for (const char* name : {"llama_bias", "qwen3_tied"}) {
    const auto weights = GoldenWeights(name, DType::kBFloat16);
    const auto plan = [](Halves halves) { return DepthPlan{{BlockStage{0}, BlockStage{1, halves}}}; };
    const DepthPlan both = plan(Halves::kBoth), attention = plan(Halves::kAttention), mlp = plan(Halves::kMlp),
                    neither{{BlockStage{0}}};
    EXPECT_EQ(attention.Parameters(*weights) - neither.Parameters(*weights),
              both.Parameters(*weights) - mlp.Parameters(*weights));
    EXPECT_EQ(attention.BytesPerToken(*weights) - neither.BytesPerToken(*weights),
              both.BytesPerToken(*weights) - mlp.BytesPerToken(*weights));
    const ModelConfig& c = weights->config;
    const int64_t mlp_parameters = c.hidden + 3 * c.hidden * c.intermediate +  // norm, projections
                                   (c.mlp_bias ? 2 * c.intermediate + c.hidden : 0);
    EXPECT_EQ(mlp.Parameters(*weights) - neither.Parameters(*weights), mlp_parameters) << name;
    EXPECT_EQ(mlp.BytesPerToken(*weights) - neither.BytesPerToken(*weights), 2 * mlp_parameters) << name;
  }
}

}  // namespace
}  // namespace shiftrt
