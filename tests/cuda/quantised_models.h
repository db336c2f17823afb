// SPDX-License-Identifier: Apache-2.0
// Small random models whose matrices are quantised, mixed as files have them.
#pragma once

#include <memory>
#include <vector>

#include "kernels/widen.h"
#include "runtime/block_rounding.h"
#include "tests/cuda/models.h"

namespace shiftrt {

// The type of each matrix. bfloat16: it stays as it is.
struct QuantisedTypes {
  DType q, k, v, o, gate, up, down, embedding;
};
inline constexpr QuantisedTypes kOneType{DType::kQ4_0, DType::kQ4_0, DType::kQ4_0, DType::kQ4_0,
                                         DType::kQ4_0, DType::kQ4_0, DType::kQ4_0, DType::kQ4_0};
inline constexpr QuantisedTypes kMixedTypes{DType::kQ4_K, DType::kBFloat16, DType::kQ6_K, DType::kQ5_K,
                                            DType::kQ4_K, DType::kQ6_K,     DType::kQ8_0, DType::kQ6_K};

// Widths of whole blocks: 256 for Q4_K, Q5_K and Q6_K, 32 for the input of the down projection.
inline constexpr Shape kQuantisedQwen2{.hidden = 256, .intermediate = 288, .heads = 4};
inline constexpr Shape kQuantisedQwen3{"qwen3", "Qwen3ForCausalLM", 256, 288, 4, 2, 128, 67, false};
inline constexpr Shape kQuantisedStarcoder2{.type = "starcoder2",
                                            .architecture = "Starcoder2ForCausalLM",
                                            .hidden = 256,
                                            .intermediate = 288,
                                            .heads = 4,
                                            .more = R"("use_bias": true,)",
                                            .activation = "gelu_pytorch_tanh",
                                            .eps = "norm_epsilon"};

inline constexpr Shape kQuantisedQwen35{
    .type = "qwen3_5_text",
    .architecture = "Qwen3_5ForCausalLM",
    .hidden = 256,
    .intermediate = 288,
    .heads = 4,
    .vocab = 67,
    .tied = false,
    .more = R"("layer_types": ["full_attention", "linear_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32, "linear_value_head_dim": 64, "linear_num_key_heads": 4,
        "linear_num_value_heads": 4, "partial_rotary_factor": 0.25,)"};
inline constexpr Shape kQuantisedQwen2Moe{
    .type = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .hidden = 256,
    .intermediate = 288,
    .heads = 4,
    .vocab = 67,
    .tied = false,
    .more = R"("num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 288,
        "shared_expert_intermediate_size": 320, "norm_topk_prob": false,)"};

inline std::shared_ptr<const Weights> MakeQuantised(const Shape& shape, const QuantisedTypes& types) {
  auto weights = std::make_shared<Weights>(*MakeWeights(shape, DType::kBFloat16));
  const auto round = [&](TensorView& matrix, DType type) {
    if (type == DType::kBFloat16 || matrix.empty()) return;
    const std::vector<float> values = Widened(matrix);
    const int64_t blocks = std::ssize(values) / LayoutOf(type).elements;
    auto bytes = std::make_shared<std::vector<std::byte>>(blocks * LayoutOf(type).bytes);
    EXPECT_TRUE(RoundBlocks(*FindGrid(type), values.data(), blocks, nullptr, matrix.cols(), bytes->data()));
    matrix = {bytes->data(), type, matrix.shape};
    weights->storage.push_back(std::move(bytes));
  };
  const bool tied = weights->head.data == weights->embedding.data;
  round(weights->embedding, types.embedding);
  if (tied) {
    weights->head = weights->embedding;
  } else {
    round(weights->head, types.embedding);
  }
  for (BlockWeights& block : weights->blocks) {
    round(block.q, types.q);
    round(block.k, types.k);
    round(block.v, types.v);
    round(block.o, types.o);
    round(block.gate, types.gate);
    round(block.up, types.up);
    round(block.down, types.down);
    round(block.delta_qkv, types.q);
    round(block.delta_z, types.v);
    round(block.delta_b, types.k);
    round(block.delta_a, types.k);
    for (ExpertWeights& expert : block.experts) {
      round(expert.gate, types.gate);
      round(expert.up, types.gate);
      round(expert.down, types.down);
    }
    round(block.shared_gate, types.gate);
    round(block.shared_up, types.up);
    round(block.shared_down, types.down);
  }
  return weights;
}

}  // namespace shiftrt
