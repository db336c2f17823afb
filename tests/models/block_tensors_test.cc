// SPDX-License-Identifier: Apache-2.0
// The table of a block's tensors: every member once, shapes as checkpoints have them, halves that add up.
#include "models/block_tensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "models/families.h"
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
    const bool shared = row.member == &BlockWeights::shared_norm || row.member == &BlockWeights::shared_norm_bias;
    EXPECT_EQ(row.half == Halves::kBoth, shared) << row.name;
    EXPECT_EQ(row.input != Axis::kNone, row.kind == BlockTensor::Kind::kMatrix) << row.name;
  }
  EXPECT_EQ(members.size() * sizeof(TensorView) + sizeof(block.experts), sizeof(BlockWeights));
}

TEST(BlockTensors, AnExpertHasSixRows) {
  BlockWeights block;
  block.experts.resize(3);
  std::set<const TensorView*> members;
  for (int64_t expert = 0; expert < 3; ++expert)
    for (const BlockTensor& row : ExpertTensors(expert)) {
      EXPECT_EQ(row.expert, expert);
      EXPECT_EQ(row.half, Halves::kMlp);
      EXPECT_TRUE(members.insert(&row.In(block)).second) << row.name;
    }
  EXPECT_EQ(members.size(), 18u);
  EXPECT_STREQ(ExpertTensors(2)[1].name, "mlp.experts.2.up_proj.weight");
  EXPECT_TRUE(ExpertTensors(3)[0].In(std::as_const(block)).empty());
}

TEST(BlockTensors, ShapesFollowTheConfiguration) {
  ModelConfig config;
  config.hidden = 6;
  config.intermediate = 10;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 3;
  config.block.qkv_bias = true;
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

// The tensors of a checkpoint, some of which join several rows of the table or have other names, cover every row once.
TEST(BlockTensors, FamiliesStoreThemWhereTheirCheckpointsDo) {
  const auto names = [](const std::string& model) {
    std::vector<std::string> names;
    for (const CheckpointTensor& tensor : CheckpointTensors(LoadConfig(GoldenModel(model) / "config.json")))
      names.push_back(fmt::format("{} {}", tensor.name, fmt::join(tensor.shape, "x")));
    return names;
  };
  EXPECT_EQ(names("phi3"),
            (std::vector<std::string>{"input_layernorm.weight 48", "self_attn.qkv_proj.weight 96x48",
                                      "self_attn.o_proj.weight 48x48", "post_attention_layernorm.weight 48",
                                      "mlp.gate_up_proj.weight 160x48", "mlp.down_proj.weight 48x80"}));
  EXPECT_EQ(names("gemma2"),
            (std::vector<std::string>{
                "input_layernorm.weight 48", "self_attn.q_proj.weight 64x48", "self_attn.k_proj.weight 32x48",
                "self_attn.v_proj.weight 32x48", "self_attn.o_proj.weight 48x64", "post_attention_layernorm.weight 48",
                "pre_feedforward_layernorm.weight 48", "mlp.gate_proj.weight 80x48", "mlp.up_proj.weight 80x48",
                "mlp.down_proj.weight 48x80", "post_feedforward_layernorm.weight 48"}));
  EXPECT_EQ(names("llama_bias").size(), 9u + 7u);
  EXPECT_EQ(names("mixtral").size(), 6u + 1u + 4u * 3u);
  EXPECT_EQ(names("mixtral")[6], "block_sparse_moe.gate.weight 4x48");
  EXPECT_EQ(names("mixtral").back(), "block_sparse_moe.experts.3.w2.weight 48x80");
  EXPECT_EQ(names("gpt_oss"),
            (std::vector<std::string>{
                "input_layernorm.weight 48", "self_attn.q_proj.weight 64x48", "self_attn.k_proj.weight 32x48",
                "self_attn.v_proj.weight 32x48", "self_attn.o_proj.weight 48x64", "self_attn.q_proj.bias 64",
                "self_attn.k_proj.bias 32", "self_attn.v_proj.bias 32", "self_attn.o_proj.bias 48", "self_attn.sinks 4",
                "post_attention_layernorm.weight 48", "mlp.router.weight 6x48", "mlp.router.bias 6",
                "mlp.experts.gate_up_proj 6x48x48", "mlp.experts.down_proj 6x24x48",
                "mlp.experts.gate_up_proj_bias 6x48", "mlp.experts.down_proj_bias 6x48"}));
  EXPECT_EQ(names("apertus"),
            (std::vector<std::string>{
                "attention_layernorm.weight 48", "self_attn.q_proj.weight 48x48", "self_attn.k_proj.weight 24x48",
                "self_attn.v_proj.weight 24x48", "self_attn.o_proj.weight 48x48", "self_attn.q_norm.weight 12",
                "self_attn.k_norm.weight 12", "feedforward_layernorm.weight 48", "mlp.up_proj.weight 192x48",
                "mlp.down_proj.weight 48x192", "mlp.act_fn.alpha_p 1", "mlp.act_fn.alpha_n 1", "mlp.act_fn.beta ",
                "mlp.act_fn.eps "}));
  EXPECT_EQ(names("starcoder2"),
            (std::vector<std::string>{
                "input_layernorm.weight 48", "input_layernorm.bias 48", "self_attn.q_proj.weight 48x48",
                "self_attn.k_proj.weight 24x48", "self_attn.v_proj.weight 24x48", "self_attn.o_proj.weight 48x48",
                "self_attn.q_proj.bias 48", "self_attn.k_proj.bias 24", "self_attn.v_proj.bias 24",
                "self_attn.o_proj.bias 48", "post_attention_layernorm.weight 48", "post_attention_layernorm.bias 48",
                "mlp.c_fc.weight 192x48", "mlp.c_proj.weight 48x192", "mlp.c_fc.bias 192", "mlp.c_proj.bias 48"}));
  EXPECT_EQ(names("cohere2"),
            (std::vector<std::string>{"input_layernorm.weight 48", "self_attn.q_proj.weight 48x48",
                                      "self_attn.k_proj.weight 24x48", "self_attn.v_proj.weight 24x48",
                                      "self_attn.o_proj.weight 48x48", "mlp.gate_proj.weight 80x48",
                                      "mlp.up_proj.weight 80x48", "mlp.down_proj.weight 48x80"}));
}

// The mixers of a model's layers have tensors of their own; the last projection is one row for both.
TEST(BlockTensors, FollowTheMixerOfTheLayer) {
  const ModelConfig config = LoadConfig(GoldenModel("qwen3_5") / "config.json");
  const auto names = [&](int64_t layer) {
    std::vector<std::string> names;
    for (const CheckpointTensor& tensor : CheckpointTensors(ConfigOfBlock(config, layer, 0)))
      if (std::string_view(tensor.name).find("attn.") != std::string_view::npos)
        names.push_back(fmt::format("{} {}", tensor.name, fmt::join(tensor.shape, "x")));
    return names;
  };
  EXPECT_EQ(names(2), (std::vector<std::string>{"self_attn.q_proj.weight 128x48", "self_attn.k_proj.weight 32x48",
                                                "self_attn.v_proj.weight 32x48", "self_attn.o_proj.weight 48x64",
                                                "self_attn.q_norm.weight 16", "self_attn.k_norm.weight 16"}));
  EXPECT_EQ(names(3),
            (std::vector<std::string>{"linear_attn.out_proj.weight 48x48", "linear_attn.in_proj_qkv.weight 80x48",
                                      "linear_attn.in_proj_z.weight 48x48", "linear_attn.in_proj_b.weight 4x48",
                                      "linear_attn.in_proj_a.weight 4x48", "linear_attn.conv1d.weight 80x1x4",
                                      "linear_attn.A_log 4", "linear_attn.dt_bias 4", "linear_attn.norm.weight 12"}));
  EXPECT_EQ(config.heads_dim(), 64);
  EXPECT_EQ(ConfigOfBlock(config, 3, 0).heads_dim(), 48);
}

TEST(BlockTensors, AShortConvolutionHasItsProjections) {
  const ModelConfig config = LoadConfig(GoldenModel("lfm2") / "config.json");
  const auto names = [&](int64_t layer) {
    std::vector<std::string> names;
    for (const CheckpointTensor& tensor : CheckpointTensors(ConfigOfBlock(config, layer, 0)))
      names.push_back(fmt::format("{} {}", tensor.name, fmt::join(tensor.shape, "x")));
    return names;
  };
  EXPECT_EQ(names(0), (std::vector<std::string>{"operator_norm.weight 48", "conv.out_proj.weight 48x48",
                                                "ffn_norm.weight 48", "feed_forward.w1.weight 96x48",
                                                "feed_forward.w3.weight 96x48", "feed_forward.w2.weight 48x96",
                                                "conv.in_proj.weight 144x48", "conv.conv.weight 48x1x3"}));
  EXPECT_EQ(names(1)[4], "self_attn.out_proj.weight 48x48");
  EXPECT_EQ(names(1)[5], "self_attn.q_layernorm.weight 12");
  EXPECT_EQ(names(1).size(), 11u);
}

// The parts of a fused tensor are views of its rows, converted or not.
TEST(BlockTensors, PartsOfAFusedTensorAreViewsOfItsRows) {
  for (const auto dtype : {WeightType::kAsStored, WeightType::kBFloat16}) {
    const TemporaryDirectory directory;
    WriteRandomCheckpoint(GoldenModel("phi3") / "config.json", DType::kFloat32, 1, directory.path());
    const auto weights = LoadWeights(directory.path(), {.dtype = dtype});
    const BlockWeights& block = weights->blocks[1];
    EXPECT_EQ(block.q.shape, (std::vector<int64_t>{48, 48}));
    EXPECT_EQ(block.k.shape, (std::vector<int64_t>{24, 48}));
    EXPECT_EQ(block.up.shape, (std::vector<int64_t>{80, 48}));
    const auto end = [](const TensorView& t) { return static_cast<const std::byte*>(t.data) + t.bytes(); };
    EXPECT_EQ(block.k.data, end(block.q));
    EXPECT_EQ(block.v.data, end(block.k));
    EXPECT_EQ(block.up.data, end(block.gate));
  }
}

// Also where the model scales its embeddings by a number that is rounded to their type.
TEST(BlockTensors, TheFingerprintIsThatOfTheFileWhateverTheType) {
  for (const char* name : {"phi3", "gemma2"}) {
    const TemporaryDirectory directory;
    WriteRandomCheckpoint(GoldenModel(name) / "config.json", DType::kFloat32, 1, directory.path());
    EXPECT_EQ(LoadWeights(directory.path(), {.dtype = WeightType::kBFloat16})->Fingerprint(),
              LoadWeights(directory.path())->Fingerprint())
        << name;
  }
}

// Biases, norms of heads and a tied head: what any of them adds to is counted once, in its half.
TEST(BlockTensors, HalvesOfABlockAddUp) {
  for (const char* name : {"llama_bias", "qwen3_tied", "phi3", "gemma2", "starcoder2"}) {
    const auto weights = GoldenWeights(name, DType::kBFloat16);
    const auto plan = [](Halves halves) { return DepthPlan{{BlockStage{0}, BlockStage{1, halves}}}; };
    const DepthPlan both = plan(Halves::kBoth), attention = plan(Halves::kAttention), mlp = plan(Halves::kMlp),
                    neither{{BlockStage{0}}};
    EXPECT_EQ(attention.Parameters(*weights) - neither.Parameters(*weights),
              both.Parameters(*weights) - mlp.Parameters(*weights));
    EXPECT_EQ(attention.BytesPerToken(*weights) - neither.BytesPerToken(*weights),
              both.BytesPerToken(*weights) - mlp.BytesPerToken(*weights));
    const ModelConfig& c = weights->config;
    const int64_t widths = c.block.gated ? 2 : 1;
    const int64_t mlp_parameters = (c.block.update_norms || c.block.norm_bias ? 2 : 1) * c.hidden +  // norms
                                   (widths + 1) * c.hidden * c.intermediate +                        // projections
                                   (c.block.mlp_bias ? widths * c.intermediate + c.hidden : 0);
    EXPECT_EQ(mlp.Parameters(*weights) - neither.Parameters(*weights), mlp_parameters) << name;
    EXPECT_EQ(mlp.BytesPerToken(*weights) - neither.BytesPerToken(*weights), 2 * mlp_parameters) << name;
  }
}

}  // namespace
}  // namespace shiftrt
