// SPDX-License-Identifier: Apache-2.0
// Small random models that the GPU kernels support.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/decoder.h"
#include "models/model.h"
#include "runtime/context.h"
#include "runtime/cuda/cuda.h"
#include "tests/models/fixtures.h"

namespace shiftrt {

// Contexts that share what is in the memory of GPUs, as those of one program do.
inline Context On(Device device, const std::vector<int>& gpus = {0}) {
  static const std::shared_ptr<DeviceCopies> copies = MakeDeviceCopies();
  const bool gpu = device == Device::kCuda;
  return {.isa = BestIsa(),
          .device = device,
          .gpus = gpus,
          .solver = gpu ? gpu::MakeSolver(gpus.front()) : nullptr,
          .device_copies = copies};
}

// All sizes are small except the head dimension, of which the kernels support only full sizes.
struct Shape {
  const char* type = "qwen2";
  const char* architecture = "Qwen2ForCausalLM";
  int hidden = 72, intermediate = 104, heads = 3, kv_heads = 1, head_dim = 64, vocab = 61;
  bool tied = true;
  int layers = 2;
  const char* more = "";  // settings of the family's own
  const char* activation = "silu";
  const char* eps = "rms_norm_eps";
};
inline constexpr Shape kQwen2{};
inline constexpr Shape kQwen3{"qwen3", "Qwen3ForCausalLM", 64, 88, 4, 2, 80, 67, false};
inline constexpr Shape kLlama{"llama", "LlamaForCausalLM", 136, 96, 2, 2, 128, 53, false};
inline constexpr Shape kPhi3{
    "phi3", "Phi3ForCausalLM", 64, 88, 2, 1, 96, 67, false, 2, R"("sliding_window": 9, "rope_scaling": null,)"};
// Its first layer has a window, its second has none.
inline constexpr Shape kGemma2{"gemma2", "Gemma2ForCausalLM", 72, 104, 4, 2, 64, 61, true, 2, R"("sliding_window": 7,
        "query_pre_attn_scalar": 40, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0,)"};

// LayerNorm with bias, an MLP without gate, and biases.
inline constexpr Shape kStarcoder2{.type = "starcoder2",
                                   .architecture = "Starcoder2ForCausalLM",
                                   .more = R"("sliding_window": 9, "use_bias": true,)",
                                   .activation = "gelu_pytorch_tanh",
                                   .eps = "norm_epsilon"};
// LayerNorm with 1 + weight, squared ReLU, and half of a head rotated.
inline constexpr Shape kNemotron{.type = "nemotron",
                                 .architecture = "NemotronForCausalLM",
                                 .tied = false,
                                 .more = R"("partial_rotary_factor": 0.5,)",
                                 .activation = "relu2",
                                 .eps = "norm_eps"};
// Parallel blocks, of which the second has neither a window nor a rotary embedding. (Without the latter, biases of keys
// would have no gradient.)
inline constexpr Shape kCohere2{.type = "cohere2",
                                .architecture = "Cohere2ForCausalLM",
                                .hidden = 128,
                                .intermediate = 104,
                                .heads = 2,
                                .more = R"("sliding_window": 7, "sliding_window_pattern": 2, "logit_scale": 0.25,)",
                                .eps = "layer_norm_eps"};

// Two rotary embeddings, norms of heads with an offset, and a local and a global layer.
inline constexpr Shape kGemma3{"gemma3_text",
                               "Gemma3ForCausalLM",
                               72,
                               104,
                               4,
                               2,
                               64,
                               61,
                               true,
                               2,
                               R"("sliding_window": 7, "query_pre_attn_scalar": 40, "sliding_window_pattern": 2,
        "rope_local_base_freq": 100.0, "hidden_activation": "gelu_pytorch_tanh",)"};
// Queries are scaled by their position.
inline constexpr Shape kMinistral3{
    "ministral3", "Ministral3ForCausalLM", 64, 88, 2, 1, 64, 67, false, 2, R"("rope_parameters": {"type": "yarn",
        "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3},)"};
// Norms after the halves alone, and of all heads together.
inline constexpr Shape kOlmo2{"olmo2", "Olmo2ForCausalLM",          64, 88, 4, 2, 64, 67, false,
                              2,       R"("attention_bias": true,)"};
// The second layer has no rotary embedding.
inline constexpr Shape kSmolLm3{
    "smollm3", "SmolLM3ForCausalLM", 64, 88, 2, 1, 64, 67, true, 2, R"("no_rope_layer_interval": 2,)"};
inline constexpr Shape kGranite{"granite",
                                "GraniteForCausalLM",
                                64,
                                88,
                                2,
                                1,
                                64,
                                67,
                                true,
                                2,
                                R"("attention_multiplier": 0.05, "embedding_multiplier": 6.0, "logits_scaling": 4.0,
        "residual_multiplier": 0.4, "attention_bias": true, "mlp_bias": true,)"};
// Neighbours in the first half of a head are rotated.
inline constexpr Shape kGlm4{
    "glm4", "Glm4ForCausalLM", 64, 88, 2, 1, 64, 67, false, 2, R"("partial_rotary_factor": 0.5,)"};
// Sequences of more than 16 tokens have other factors.
inline constexpr Shape kPhi3Long{
    "phi3", "Phi3ForCausalLM", 64, 88, 2, 1, 64, 67, false, 2, R"("original_max_position_embeddings": 16,
        "partial_rotary_factor": 0.25, "rope_scaling": {"type": "longrope",
        "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.1, 2.2, 2.3], "long_factor": [1, 1.5, 2, 4, 8, 12, 16, 20]},)"};

// Attention with gates, norms of heads and a quarter of a head rotated, and then a gated delta network.
inline constexpr Shape kQwen35{
    .type = "qwen3_5_text",
    .architecture = "Qwen3_5ForCausalLM",
    .hidden = 64,
    .intermediate = 88,
    .heads = 2,
    .vocab = 67,
    .tied = false,
    .more = R"("layer_types": ["full_attention", "linear_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 20, "linear_value_head_dim": 36, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "partial_rotary_factor": 0.25,)"};

// Mixtures of experts. The last layer of the second has an MLP. In 16 bits, a choice may be another than the CPU's, so
// that models which are compared in 16 bits have no choice: all experts of the third are active. It has a shared
// expert, like the fourth, which has gated delta networks, too.
inline constexpr Shape kMixtral{.type = "mixtral",
                                .architecture = "MixtralForCausalLM",
                                .hidden = 64,
                                .intermediate = 88,
                                .heads = 2,
                                .vocab = 67,
                                .tied = false,
                                .more = R"("num_local_experts": 4, "num_experts_per_tok": 2,)"};
inline constexpr Shape kQwen3Moe{.type = "qwen3_moe",
                                 .architecture = "Qwen3MoeForCausalLM",
                                 .hidden = 64,
                                 .intermediate = 88,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 80,
                                 .vocab = 67,
                                 .tied = false,
                                 .more = R"("num_experts": 37, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "norm_topk_prob": true, "mlp_only_layers": [1],)"};
inline constexpr Shape kQwen2Moe{.type = "qwen2_moe",
                                 .architecture = "Qwen2MoeForCausalLM",
                                 .hidden = 64,
                                 .intermediate = 88,
                                 .heads = 2,
                                 .vocab = 67,
                                 .tied = false,
                                 .more = R"("num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40, "norm_topk_prob": false,)"};
inline constexpr Shape kQwen3Next{.type = "qwen3_next",
                                  .architecture = "Qwen3NextForCausalLM",
                                  .hidden = 64,
                                  .intermediate = 88,
                                  .heads = 2,
                                  .vocab = 67,
                                  .tied = false,
                                  .more = R"("layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 3, "linear_key_head_dim": 24, "linear_value_head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "partial_rotary_factor": 0.25, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
        "norm_topk_prob": true,)"};

// Attention with sinks, and in turns with a window; a clamped unit, and biases of the router and of all experts. All
// experts are active.
inline constexpr Shape kGptOss{.type = "gpt_oss",
                               .architecture = "GptOssForCausalLM",
                               .hidden = 64,
                               .intermediate = 40,
                               .heads = 4,
                               .kv_heads = 2,
                               .vocab = 67,
                               .tied = false,
                               .more = R"("num_local_experts": 3, "num_experts_per_tok": 3, "attention_bias": true,
        "sliding_window": 7, "swiglu_limit": 0.5,)"};
// Three experts of six.
inline constexpr Shape kGptOssChoice{.type = "gpt_oss",
                                     .architecture = "GptOssForCausalLM",
                                     .hidden = 64,
                                     .intermediate = 40,
                                     .heads = 8,
                                     .vocab = 67,
                                     .tied = false,
                                     .more = R"("num_local_experts": 6, "num_experts_per_tok": 3,
        "attention_bias": true, "sliding_window": 7, "swiglu_limit": 0.5,)"};

inline std::shared_ptr<const Weights> MakeWeights(const Shape& shape, DType dtype) {
  const TemporaryDirectory directory;
  const auto config = directory.path() / "wanted.json";
  std::ofstream(config) << fmt::format(
      R"({{{} "architectures": ["{}"], "model_type": "{}", "hidden_act": "{}", "hidden_size": {}, "intermediate_size": {},
           "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
           "vocab_size": {}, "max_position_embeddings": 128, "{}": 1e-5, "rope_theta": 10000.0,
           "tie_word_embeddings": {}, "bos_token_id": 0, "eos_token_id": 1}})",
      shape.more, shape.architecture, shape.type, shape.activation, shape.hidden, shape.intermediate, shape.layers,
      shape.heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.eps, shape.tied);
  const auto model = directory.path() / "model";
  std::filesystem::create_directory(model);
  WriteRandomCheckpoint(config, dtype, 1, model);
  return LoadWeights(model);
}

// A copy of rows of the host on the device of `context`.
inline KeptRows Uploaded(const Context& context, std::shared_ptr<const Weights> weights, MatrixView<const float> rows) {
  Batch batch;
  batch.Add(std::vector<int32_t>(rows.rows, 0));
  Decoder decoder(context, std::move(weights), DepthPlan::Original(0));
  KeptRows kept;
  kept.Set(decoder.Resume(batch, rows, {}));
  return kept;
}

}  // namespace shiftrt
