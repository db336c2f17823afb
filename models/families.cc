// SPDX-License-Identifier: Apache-2.0
#include "models/families.h"

#include <algorithm>
#include <array>
#include <utility>

#include "models/block_tensors.h"
#include "models/family_blocks.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

constexpr ExpertPlaces kExpertNames = {"mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight",
                                       "mlp.experts.{}.down_proj.weight"};
constexpr ExpertPlaces kNamesTogether = {kExpertsTogether, kExpertsTogether, "mlp.experts.down_proj"};
constexpr ExpertPlaces kGptOssNames = {.gate = kExpertsTogether,
                                       .up = kExpertsTogether,
                                       .down = "mlp.experts.down_proj",
                                       .gate_bias = "mlp.experts.gate_up_proj_bias",
                                       .up_bias = "mlp.experts.gate_up_proj_bias",
                                       .down_bias = "mlp.experts.down_proj_bias",
                                       .interleaved = true,
                                       .transposed = true};
constexpr ExpertPlaces kMixtralNames = {"block_sparse_moe.experts.{}.w1.weight",
                                        "block_sparse_moe.experts.{}.w3.weight",
                                        "block_sparse_moe.experts.{}.w2.weight"};

}  // namespace

RowOrder DeltaQkvzByKeyHead(const ModelConfig& config) {
  const GatedDeltaShape& delta = config.block.delta;
  const int64_t values = delta.values() / delta.key_heads;
  return GroupedParts(delta.key_heads, {delta.key_dim, delta.key_dim, values, values});
}
RowOrder DeltaBaByKeyHead(const ModelConfig& config) {
  const GatedDeltaShape& delta = config.block.delta;
  const int64_t heads = delta.value_heads / delta.key_heads;
  return GroupedParts(delta.key_heads, {heads, heads});
}

const std::vector<Family>& Families() {
  using B = BlockWeights;
  // Norms after the halves, with norms before them or without.
  static const std::vector<TensorPlace> kGemmaPlaces = {
      {"post_attention_layernorm.weight", {&B::attention_update_norm}},
      {"pre_feedforward_layernorm.weight", {&B::post_norm}},
      {"post_feedforward_layernorm.weight", {&B::mlp_update_norm}}};
  static const std::vector<TensorPlace> kPlacesAfter = {
      {"post_attention_layernorm.weight", {&B::attention_update_norm}},
      {"post_feedforward_layernorm.weight", {&B::mlp_update_norm}}};
  static const TensorPlace kDeltaOutput = {"linear_attn.out_proj.weight", {&B::o}, &BlockSpec::gated_delta};
  static const std::vector<const char*> kOfRouterTraining = {"output_router_logits", "router_aux_loss_coef",
                                                             "router_jitter_noise", "max_window_layers"};
  static const std::vector<Family> families = {
      {.architecture = "LlamaForCausalLM",
       .name = "llama",
       .block = LlamaBlock,
       .since = "0.1.0",
       .models = "Llama 2, Llama 3.x, Vicuna, SmolLM 2",
       .harmless = {"is_llama_config"}},
      {.architecture = "MistralForCausalLM",
       .name = "mistral",
       .block = MistralBlock,
       .since = "0.1.0",
       .models = "Mistral 7B, Mistral Nemo, Mistral Small 3"},
      {.architecture = "MinistralForCausalLM", .name = "ministral", .block = MinistralBlock, .models = "Ministral 8B"},
      {.architecture = "Ministral3ForCausalLM",
       .name = "ministral3",
       .block = Ministral3Block,
       .models = "Ministral 3",
       .defaults =
           R"({"head_dim": 128, "rms_norm_eps": 1e-5, "rope_parameters": {"type": "yarn", "rope_theta": 1000000.0,
                       "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
                       "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}})",
       .rope = {.query_beta = true},
       .harmless = {"max_position_embeddings"}},  // among the settings of RoPE
      {.architecture = "Qwen2ForCausalLM",
       .name = "qwen2",
       .block = Qwen2Block,
       .since = "0.1.0",
       .models = "Qwen 1.5, Qwen 2, Qwen 2.5",
       .harmless = {"attention_bias"}},  // queries, keys and values always have biases
      {.architecture = "Qwen3ForCausalLM", .name = "qwen3", .block = Qwen3Block, .since = "0.1.0", .models = "Qwen 3"},
      {.architecture = "Qwen3MoeForCausalLM",
       .name = "qwen3_moe",
       .block = Qwen3MoeBlock,
       .models = "Qwen 3 30B-A3B and 235B-A22B",
       .defaults = R"({"num_experts_per_tok": 8, "moe_intermediate_size": 768})",
       .harmless = kOfRouterTraining},
      {.architecture = "Qwen2MoeForCausalLM",
       .name = "qwen2_moe",
       .block = Qwen2MoeBlock,
       .models = "Qwen 1.5 MoE A2.7B, Qwen 2 57B-A14B",
       .defaults = R"({"num_experts_per_tok": 4, "num_experts": 60, "moe_intermediate_size": 1408,
                       "shared_expert_intermediate_size": 5632})",
       .harmless = kOfRouterTraining},
      {.architecture = "MixtralForCausalLM",
       .name = "mixtral",
       .block = MixtralBlock,
       .models = "Mixtral 8x7B and 8x22B",
       .defaults = R"({"rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "num_experts_per_tok": 2,
                       "num_local_experts": 8})",
       .harmless = kOfRouterTraining,
       .places = {{"block_sparse_moe.gate.weight", {&B::router}}},
       .experts = &kMixtralNames},
      {.architecture = "OlmoeForCausalLM",
       .name = "olmoe",
       .block = OlmoeBlock,
       .models = "OLMoE 1B-7B",
       .defaults = R"({"rms_norm_eps": 1e-5, "num_experts_per_tok": 8, "num_experts": 64})",
       .harmless = kOfRouterTraining},
      {.architecture = "GptOssForCausalLM",
       .name = "gpt_oss",
       .block = GptOssBlock,
       .models = "gpt-oss 20B and 120B",
       .defaults =
           R"({"rms_norm_eps": 1e-5, "rope_theta": 150000.0, "head_dim": 64, "num_key_value_heads": 8,
                       "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
                       "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                       "truncate": false, "original_max_position_embeddings": 4096}})",
       // Old names of num_experts_per_tok and of the positions before YaRN.
       .harmless = {"experts_per_token", "initial_context_length", "output_router_logits", "router_aux_loss_coef"},
       .places = {{"mlp.router.weight", {&B::router}}, {"mlp.router.bias", {&B::router_bias}}},
       .experts = &kGptOssNames},
      {.architecture = "Qwen3NextForCausalLM",
       .name = "qwen3_next",
       .block = Qwen3NextBlock,
       .models = "Qwen 3 Next 80B-A3B",
       .defaults = R"({"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                       "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                       "num_experts_per_tok": 10, "num_experts": 512, "moe_intermediate_size": 512,
                       "shared_expert_intermediate_size": 512})",
       .rope = {.partial = 0.25},
       .harmless = {"output_router_logits", "router_aux_loss_coef", "full_attention_interval"},
       .places = {kDeltaOutput,
                  {"linear_attn.in_proj_qkvz.weight", {&B::delta_qkv, &B::delta_z}, nullptr, DeltaQkvzByKeyHead},
                  {"linear_attn.in_proj_ba.weight", {&B::delta_b, &B::delta_a}, nullptr, DeltaBaByKeyHead}}},
      {.architecture = "Qwen3_5ForCausalLM",
       .name = "qwen3_5",
       .model_type = "qwen3_5_text",
       .block = Qwen35Block,
       .models = "Qwen 3.5, dense",
       .defaults = R"({"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                       "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32})",
       .rope = {.partial = 0.25},
       // The settings of positions in images, of which text has all alike, and of the prediction of several tokens.
       .harmless = {"mrope_section", "mrope_interleaved", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                    "mamba_ssm_dtype", "mlp_only_layers", "full_attention_interval"},
       .places = {kDeltaOutput}},
      {.architecture = "Qwen3_5MoeForCausalLM",
       .name = "qwen3_5_moe",
       .model_type = "qwen3_5_moe_text",
       .block = Qwen35MoeBlock,
       .models = "Qwen 3.5 35B-A3B, 122B-A10B and 397B-A17B",
       .defaults = R"({"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                       "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                       "num_experts_per_tok": 8, "num_experts": 256, "moe_intermediate_size": 512,
                       "shared_expert_intermediate_size": 512})",
       .intermediate = "shared_expert_intermediate_size",  // no layer has an MLP
       .rope = {.partial = 0.25},
       .harmless = {"mrope_section", "mrope_interleaved", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                    "mamba_ssm_dtype", "full_attention_interval", "output_router_logits", "router_aux_loss_coef",
                    "intermediate_size", "norm_topk_prob"},
       .places = {kDeltaOutput}},
      {.architecture = "HunYuanDenseV1ForCausalLM",
       .name = "hunyuan_v1_dense",
       .block = HunYuanBlock,
       .models = "Hunyuan 0.5B to 7B",
       .defaults = R"({"rms_norm_eps": 1e-5})",
       .rope = {.ntk_alpha = true},
       // The settings of YaRN stand beside alpha, and do nothing there. The other keys are of images, of the mixtures
       // of larger models, of tokens, and of sizes that other keys say.
       .harmless = {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "add_classification_head",
                    "attention_head_dim", "cla_share_factor", "class_num", "dense_list", "eod_token_id", "mlp_bias",
                    "norm_type", "org_vocab_size", "pad_id", "pool_type", "use_rotary_pos_emb"},
       .places = {{"self_attn.query_layernorm.weight", {&B::q_norm}},
                  {"self_attn.key_layernorm.weight", {&B::k_norm}}}},
      {.architecture = "ApertusForCausalLM",
       .name = "apertus",
       .block = ApertusBlock,
       .models = "Apertus 8B and 70B",
       .defaults = R"({"rms_norm_eps": 1e-5, "rope_theta": 12000000.0, "rope_parameters": {"rope_type": "llama3",
                       "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0}})",
       .places = {{"attention_layernorm.weight", {&B::input_norm}}, {"feedforward_layernorm.weight", {&B::post_norm}}}},
      {.architecture = "Lfm2ForCausalLM",
       .name = "lfm2",
       .block = Lfm2Block,
       .models = "LFM2 350M to 2.6B",
       .defaults = R"({"norm_eps": 1e-5, "rope_theta": 1000000.0, "tie_word_embeddings": true, "num_key_value_heads": 8,
                       "intermediate_size": 12288, "max_position_embeddings": 128000})",
       .eps = "norm_eps",
       .units = Lfm2Units,
       .final_norm = "model.embedding_norm.weight",
       .aliases = {{"block_ff_dim", "intermediate_size"}, {"tie_embedding", "tie_word_embeddings"}},
       // Sizes that other keys say, and settings of the initialisation.
       .harmless = {"block_dim", "block_norm_eps", "block_mlp_init_scale", "block_out_init_scale",
                    "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta"},
       .places = {{"operator_norm.weight", {&B::input_norm}},
                  {"ffn_norm.weight", {&B::post_norm}},
                  {"self_attn.out_proj.weight", {&B::o}, &BlockSpec::attention},
                  {"conv.out_proj.weight", {&B::o}, &BlockSpec::short_convolution},
                  {"self_attn.q_layernorm.weight", {&B::q_norm}},
                  {"self_attn.k_layernorm.weight", {&B::k_norm}},
                  {"feed_forward.w1.weight", {&B::gate}},
                  {"feed_forward.w3.weight", {&B::up}},
                  {"feed_forward.w2.weight", {&B::down}}}},
      {.architecture = "Phi3ForCausalLM",
       .name = "phi3",
       .block = Phi3Block,
       .since = "0.1.0",
       .models = "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
       .defaults = R"({"rms_norm_eps": 1e-5})",
       .rope = {.partial = 1, .longrope = true},
       .places = {{"self_attn.qkv_proj.weight", {&B::q, &B::k, &B::v}},
                  {"mlp.gate_up_proj.weight", {&B::gate, &B::up}}}},
      {.architecture = "GemmaForCausalLM",
       .name = "gemma",
       .block = Gemma1Block,
       .models = "Gemma, 2B and 7B, CodeGemma",
       .defaults = R"({"tie_word_embeddings": true, "head_dim": 256})",
       .harmless = {"hidden_activation"}},
      {.architecture = "Gemma2ForCausalLM",
       .name = "gemma2",
       .block = Gemma2Block,
       .since = "0.1.0",
       .models = "Gemma 2",
       .defaults = R"({"tie_word_embeddings": true, "head_dim": 256, "query_pre_attn_scalar": 256,
                       "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})",
       .harmless = {"hidden_act", "sliding_window_size"},
       .places = kGemmaPlaces},
      {.architecture = "Gemma3ForCausalLM",
       .name = "gemma3",
       .model_type = "gemma3_text",
       .block = Gemma3Block,
       .models = "Gemma 3, 270M to 27B",
       // Released configs leave out what they have in common with these.
       .defaults =
           R"({"tie_word_embeddings": true, "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                       "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                       "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                       "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})",
       .rope = {.by_layer_type = true, .local_theta = "rope_local_base_freq"},
       .harmless = {"hidden_act", "_sliding_window_pattern"},
       .places = kGemmaPlaces},
      {.architecture = "VaultGemmaForCausalLM",
       .name = "vaultgemma",
       .block = VaultGemmaBlock,
       .models = "VaultGemma 1B",
       .defaults = R"({"tie_word_embeddings": true, "head_dim": 256, "query_pre_attn_scalar": 256,
                       "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})",
       .harmless = {"hidden_act"},
       .places = {{"pre_feedforward_layernorm.weight", {&B::post_norm}}}},
      {.architecture = "SmolLM3ForCausalLM",
       .name = "smollm3",
       .block = SmolLm3Block,
       .models = "SmolLM 3",
       .defaults = R"({"tie_word_embeddings": true, "rope_theta": 2000000.0})",
       .harmless = {"max_window_layers"}},
      {.architecture = "Olmo2ForCausalLM",
       .name = "olmo2",
       .block = Olmo2Block,
       .models = "OLMo 2",
       .defaults = R"({"rms_norm_eps": 1e-5})",
       .places = kPlacesAfter},
      {.architecture = "Olmo3ForCausalLM",
       .name = "olmo3",
       .block = Olmo3Block,
       .models = "OLMo 3",
       .defaults = R"({"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096})",
       .rope = {.by_layer_type = true},
       .places = kPlacesAfter},
      {.architecture = "GraniteForCausalLM", .name = "granite", .block = GraniteBlock, .models = "Granite 3"},
      {.architecture = "HyperCLOVAXForCausalLM",
       .name = "hyperclovax",
       .block = HyperClovaXBlock,
       .models = "HyperCLOVA X SEED Think 14B",
       .places = {{"post_norm1.weight", {&B::attention_update_norm}}, {"post_norm2.weight", {&B::mlp_update_norm}}}},
      {.architecture = "GraniteMoeHybridForCausalLM",
       .name = "granite4",
       .model_type = "granitemoehybrid",
       .block = Granite4Block,
       .models = "Granite 4 without Mamba layers and experts",
       .intermediate = "shared_intermediate_size",
       .harmless = {"intermediate_size", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef",
                    "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state",
                    "mamba_expand", "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "time_step_limit",
                    "normalization_function", "init_method"},
       .places = {{"shared_mlp.input_linear.weight", {&B::gate, &B::up}},
                  {"shared_mlp.output_linear.weight", {&B::down}}}},
      {.architecture = "GlmForCausalLM",
       .name = "glm",
       .block = GlmBlock,
       .models = "GLM-4-9B, GLM-Edge",
       .defaults = R"({"head_dim": 128, "rms_norm_eps": 1.5625e-07, "num_key_value_heads": 2})",
       .rope = {.partial = 0.5, .interleaved = true},
       .places = {{"mlp.gate_up_proj.weight", {&B::gate, &B::up}}}},
      {.architecture = "Glm4ForCausalLM",
       .name = "glm4",
       .block = Glm4Block,
       .models = "GLM-4-0414, 9B and 32B",
       .defaults = R"({"head_dim": 128, "rms_norm_eps": 1.5625e-07, "num_key_value_heads": 2})",
       .rope = {.partial = 0.5, .interleaved = true},
       .places = {{"post_self_attn_layernorm.weight", {&B::attention_update_norm}},
                  {"post_mlp_layernorm.weight", {&B::mlp_update_norm}},
                  {"mlp.gate_up_proj.weight", {&B::gate, &B::up}}}},
      {.architecture = "SeedOssForCausalLM",
       .name = "seed_oss",
       .block = SeedOssBlock,
       .models = "Seed-OSS-36B",
       .defaults = R"({"head_dim": 128, "num_key_value_heads": 8})"},
      {.architecture = "Exaone4ForCausalLM",
       .name = "exaone4",
       .block = Exaone4Block,
       .models = "EXAONE 4.0, 1.2B and 32B",
       .defaults = R"({"rms_norm_eps": 1e-5, "sliding_window": 4096})",
       .places = kPlacesAfter},
      {.architecture = "Ernie4_5ForCausalLM",
       .name = "ernie4_5",
       .block = Ernie45Block,
       .models = "ERNIE 4.5 0.3B",
       .defaults = R"({"tie_word_embeddings": true, "rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128,
                       "rope_theta": 500000.0})",
       .rope = {.interleaved = true}},
      {.architecture = "NemotronForCausalLM",
       .name = "nemotron",
       .block = NemotronBlock,
       .models = "Nemotron 4, Minitron",
       .defaults = R"({"norm_eps": 1e-5})",
       .eps = "norm_eps",
       .rope = {.partial = 0.5}},
      {.architecture = "ArceeForCausalLM",
       .name = "arcee",
       .block = ArceeBlock,
       .models = "AFM-4.5B",
       .defaults = R"({"rms_norm_eps": 1e-5})"},
      {.architecture = "Jais2ForCausalLM",
       .name = "jais2",
       .block = Jais2Block,
       .models = "Jais 2, 8B and 70B",
       .defaults = R"({"layer_norm_eps": 1e-5})",
       .eps = "layer_norm_eps"},
      {.architecture = "CwmForCausalLM",
       .name = "cwm",
       .block = CwmBlock,
       .models = "Code World Model 32B",
       .defaults = R"({"rms_norm_eps": 1e-5, "head_dim": 128})"},
      {.architecture = "CohereForCausalLM",
       .name = "cohere",
       .block = CohereBlock,
       .models = "Command R, Aya 23",
       .defaults =
           R"({"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": true, "rope_theta": 500000.0})",
       .eps = "layer_norm_eps",
       .rope = {.interleaved = true},
       .harmless = {"model_max_length"},
       .places = {{"input_layernorm.weight", {&B::shared_norm}}}},
      {.architecture = "Cohere2ForCausalLM",
       .name = "cohere2",
       .block = Cohere2Block,
       .models = "Command R7B, Command A",
       .defaults = R"({"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": true,
                       "sliding_window": 4096})",
       .eps = "layer_norm_eps",
       .rope = {.interleaved = true},
       .harmless = {"layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
                    "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding"},
       .places = {{"input_layernorm.weight", {&B::shared_norm}}}},
      {.architecture = "Starcoder2ForCausalLM",
       .name = "starcoder2",
       .block = Starcoder2Block,
       .models = "StarCoder 2, 3B, 7B and 15B",
       .defaults = R"({"norm_epsilon": 1e-5, "tie_word_embeddings": true})",
       .eps = "norm_epsilon",
       .harmless = {"norm_type", "mlp_type", "embedding_dropout"},
       .places = {{"mlp.c_fc.weight", {&B::up}},
                  {"mlp.c_proj.weight", {&B::down}},
                  {"mlp.c_fc.bias", {&B::up_bias}},
                  {"mlp.c_proj.bias", {&B::down_bias}}}},
  };
  return families;
}

const Family* FindFamily(std::string_view architecture) {
  for (const Family& family : Families())
    if (architecture == family.architecture) return &family;
  return nullptr;
}

namespace {

// Adds the tensors of the experts to `stored`.
void AddExperts(const ModelConfig& config, const ExpertPlaces& places, std::vector<CheckpointTensor>& stored) {
  const std::array names = {places.gate, places.up, places.down, places.gate_bias, places.up_bias, places.down_bias};
  const auto first = static_cast<int64_t>(stored.size());
  const int64_t experts = config.block.mixture.experts;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const std::span<const BlockTensor> rows = ExpertTensors(expert);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<int64_t> shape = rows[i].Shape(config);
      if (shape.empty()) continue;
      Check(names[i] != nullptr, "the files of this family have no place for {}", rows[i].name);
      std::string name = names[i];
      const size_t number = name.find("{}");
      if (number != name.npos) {
        stored.push_back({name.replace(number, 2, std::to_string(expert)), shape, {&rows[i]}});
        continue;
      }
      const auto before = std::find_if(stored.begin() + first, stored.end(),
                                       [&](const CheckpointTensor& tensor) { return tensor.name == name; });
      if (before == stored.end()) {
        shape.insert(shape.begin(), experts);
        stored.push_back({.name = std::move(name), .shape = std::move(shape), .parts = {&rows[i]}, .together = true});
      } else {
        if (expert == 0) before->shape[1] += shape[0];
        before->parts.push_back(&rows[i]);
      }
    }
  }
  for (CheckpointTensor& tensor : std::span(stored).subspan(first)) {
    if (places.interleaved && std::ssize(tensor.parts) == 2 * experts)
      tensor.order = InterleavedHalves(experts * tensor.shape[1], experts);
    if (!places.transposed || tensor.shape.size() != 3) continue;
    std::swap(tensor.shape[1], tensor.shape[2]);
    tensor.transposed = true;
  }
}

const Family& FamilyOf(const ModelConfig& config) {
  const auto& families = Families();
  const auto family =
      std::find_if(families.begin(), families.end(), [&](const Family& f) { return config.family == f.name; });
  Check(family != families.end(), "\"{}\" is no family", config.family);
  return *family;
}

}  // namespace

const char* FinalNormName(const ModelConfig& config) { return FamilyOf(config).final_norm; }

std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config) {
  const Family& family = FamilyOf(config);
  return CheckpointTensors(config, family.places, family.experts);
}

std::vector<CheckpointTensor> CheckpointTensorsWithExpertsTogether(const ModelConfig& config) {
  const Family& family = FamilyOf(config);
  const bool own = family.experts != nullptr && family.experts->Together();
  return CheckpointTensors(config, family.places, own ? family.experts : &kNamesTogether);
}

std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config, const std::vector<TensorPlace>& places,
                                                const ExpertPlaces* experts) {
  std::vector<CheckpointTensor> stored;
  for (const BlockTensor& row : BlockTensors()) {
    std::vector<int64_t> shape = row.Shape(config);
    if (shape.empty()) continue;
    const auto place = std::find_if(places.begin(), places.end(), [&](const TensorPlace& p) {
      return (p.setting == nullptr || config.block.*p.setting) &&
             std::find(p.members.begin(), p.members.end(), row.member) != p.members.end();
    });
    const char* name = place == places.end() ? row.name : place->name;
    const auto before =
        std::find_if(stored.begin(), stored.end(), [&](const CheckpointTensor& s) { return s.name == name; });
    if (before == stored.end()) {
      if (row.kind == BlockTensor::Kind::kConstant) shape.clear();
      CheckpointTensor& tensor = stored.emplace_back(CheckpointTensor{name, std::move(shape), {&row}});
      if (place == places.end()) continue;
      if (place->order != nullptr) tensor.order = place->order(config);
      if (place->columns != nullptr) tensor.columns = place->columns(config);
    } else {
      before->shape[0] += shape[0];
      before->parts.push_back(&row);
    }
  }
  if (config.block.mixed) AddExperts(config, experts != nullptr ? *experts : kExpertNames, stored);
  return stored;
}

}  // namespace shiftrt
