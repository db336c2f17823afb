// SPDX-License-Identifier: Apache-2.0
#include "models/gguf_architectures.h"

#include <algorithm>
#include <cmath>

#include "models/block_tensors.h"

namespace shiftrt {

namespace {

using B = BlockWeights;

double AttentionScale(const ModelConfig& config) { return static_cast<double>(config.block.attention_scale); }
double AttentionCap(const ModelConfig& config) { return static_cast<double>(config.block.attention_cap); }
double LogitCap(const ModelConfig& config) { return static_cast<double>(config.block.logit_cap); }
double LogitScale(const ModelConfig& config) { return static_cast<double>(config.block.logit_scale); }
double ResidualMultiplier(const ModelConfig& config) { return static_cast<double>(config.block.residual_multiplier); }
double EmbeddingMultiplier(const ModelConfig& config) { return static_cast<double>(config.block.embedding_multiplier); }

// The number whose reciprocal in float32 is the scale of the logits.
double LogitDivisor(const ModelConfig& config) {
  const float scale = config.block.logit_scale, divisor = 1 / scale;
  for (const float near : {std::nextafter(divisor, 0.0f), std::nextafter(divisor, HUGE_VALF)})
    if (1 / divisor != scale && 1 / near == scale) return static_cast<double>(near);
  return static_cast<double>(divisor);
}

// llama.cpp's order of value heads: the first of each key head, then the second, and so on.
RowOrder TiledValueHeads(const ModelConfig& config, int64_t before, int64_t rows) {
  const GatedDeltaShape& delta = config.block.delta;
  return TiledHeads(before, delta.key_heads, delta.value_heads / delta.key_heads, rows);
}
RowOrder TiledChannels(const ModelConfig& config) {
  return TiledValueHeads(config, 2 * config.block.delta.keys(), config.block.delta.value_dim);
}
RowOrder TiledValues(const ModelConfig& config) { return TiledValueHeads(config, 0, config.block.delta.value_dim); }
RowOrder TiledScalars(const ModelConfig& config) { return TiledValueHeads(config, 0, 1); }

const std::vector<GgufArchitecture>& Architectures() {
  using Head = GgufArchitecture::Head;
  static constexpr const char* kShared = "shared_expert_intermediate_size";
  static const std::vector<TensorPlace> kTiledDelta = {
      {"post_attention_norm.weight", {&B::post_norm}},
      {"attn_qkv.weight", {&B::delta_qkv}, nullptr, TiledChannels},
      {"attn_gate.weight", {&B::delta_z}, nullptr, TiledValues},
      {"ssm_beta.weight", {&B::delta_b}, nullptr, TiledScalars},
      {"ssm_alpha.weight", {&B::delta_a}, nullptr, TiledScalars},
      {"ssm_conv1d.weight", {&B::delta_conv}, nullptr, TiledChannels},
      {"ssm_a", {&B::delta_a_log}, nullptr, TiledScalars},
      {"ssm_dt.bias", {&B::delta_dt_bias}, nullptr, TiledScalars},
      {"ssm_out.weight", {&B::o}, &BlockSpec::gated_delta, nullptr, TiledValues}};
  static const std::vector<TensorPlace> kJoinedMlp = {{"ffn_up.weight", {&B::gate, &B::up}}};
  static const std::vector<GgufArchitecture> rows = {
      {.name = "llama",
       .families = {"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"},
       .mixture = {"MixtralForCausalLM", "num_local_experts"},
       .neighbours = true,
       .rope_factors = true,
       .output_bias = true,
       .mlp_bias = true},
      {.name = "qwen2", .families = {"Qwen2ForCausalLM"}},
      {.name = "qwen3", .families = {"Qwen3ForCausalLM"}, .qkv_bias = false},
      {.name = "qwen3moe",
       .families = {"Qwen3MoeForCausalLM"},
       .mixture = {"Qwen3MoeForCausalLM", "num_experts", "moe_intermediate_size", "norm_topk_prob"},
       .qkv_bias = false},
      {.name = "qwen2moe",
       .families = {"Qwen2MoeForCausalLM"},
       .mixture = {"Qwen2MoeForCausalLM", "num_experts", "moe_intermediate_size", "norm_topk_prob", false, kShared},
       .bias = "qkv_bias"},
      {.name = "olmoe",
       .families = {"OlmoeForCausalLM"},
       .mixture = {"OlmoeForCausalLM", "num_experts", nullptr, "norm_topk_prob", false},
       .square = true,
       .qkv_bias = false},
      {.name = "gpt-oss",
       .families = {"GptOssForCausalLM"},
       .mixture = {"GptOssForCausalLM", "num_local_experts"},
       .exact_yarn = true,
       .output_bias = true,
       .needs_bias = true,
       .head = Head::kOwn,
       .full_every = 2,
       .always_windows = true,
       .places = {{"post_attention_norm.weight", {&B::post_norm}}}},
      {.name = "qwen35",
       .families = {"Qwen3_5ForCausalLM"},
       .partial = true,
       .qkv_bias = false,
       .gated_delta = true,
       .places = kTiledDelta},
      {.name = "qwen35moe",
       .families = {"Qwen3_5MoeForCausalLM"},
       .mixture = {"Qwen3_5MoeForCausalLM", "num_experts", "moe_intermediate_size", nullptr, true, kShared},
       .partial = true,
       .qkv_bias = false,
       .gated_delta = true,
       .places = kTiledDelta},
      {.name = "qwen3next",
       .families = {"Qwen3NextForCausalLM"},
       .mixture = {"Qwen3NextForCausalLM", "num_experts", "moe_intermediate_size", "norm_topk_prob", true, kShared},
       .partial = true,
       .qkv_bias = false,
       .gated_delta = true,
       .places = {{"post_attention_norm.weight", {&B::post_norm}},
                  {"ssm_ba.weight", {&B::delta_b, &B::delta_a}, nullptr, DeltaBaByKeyHead},
                  {"ssm_out.weight", {&B::o}, &BlockSpec::gated_delta}}},
      {.name = "apertus",
       .families = {"ApertusForCausalLM"},
       .activation = "xielu",
       .rope_factors = true,
       .qkv_bias = false,
       .head = Head::kOwn},
      {.name = "lfm2",
       .families = {"Lfm2ForCausalLM"},
       .qkv_bias = false,
       .short_convolution = true,
       .places = {{"shortconv.out_proj.weight", {&B::o}, &BlockSpec::short_convolution}},
       .final_norm = "token_embd_norm.weight",
       .settings = R"({"block_auto_adjust_ff_dim": false})"},
      {.name = "hunyuan-dense", .families = {"HunYuanDenseV1ForCausalLM"}, .qkv_bias = false},
      {.name = "phi3",
       .families = {"Phi3ForCausalLM"},
       .partial = true,
       .square = true,
       .yarn = false,
       .longrope = true,
       .places = {{"attn_qkv.weight", {&B::q, &B::k, &B::v}}, {"ffn_up.weight", {&B::gate, &B::up}}}},
      {.name = "gemma",
       .families = {"GemmaForCausalLM"},
       .activation = "gelu_pytorch_tanh",
       .yarn = false,
       .qkv_bias = false,
       .head = Head::kTied},
      {.name = "gemma2",
       .families = {"Gemma2ForCausalLM"},
       .activation = "gelu_pytorch_tanh",
       .yarn = false,
       .head = Head::kTied,
       .full_every = 2,
       .always_windows = true,
       .large_at = 46,
       .numbers = {{"attn_logit_softcapping", "attn_logit_softcapping", AttentionCap},
                   {"final_logit_softcapping", "final_logit_softcapping", LogitCap}}},
      {.name = "gemma3",
       .families = {"Gemma3ForCausalLM"},
       .activation = "gelu_pytorch_tanh",
       .yarn = false,
       .full_every = 6,
       .sliding_theta = 10000,
       .large_at = 62,
       .numbers = {{"final_logit_softcapping", "final_logit_softcapping", LogitCap}}},
      {.name = "smollm3", .families = {"SmolLM3ForCausalLM"}, .neighbours = true},
      {.name = "olmo2",
       .families = {"Olmo2ForCausalLM", "Olmo3ForCausalLM"},
       .windowed = "Olmo3ForCausalLM",
       .square = true,
       .head = Head::kOwn,
       .full_every = 4},
      {.name = "granite",
       .families = {"GraniteForCausalLM", "GraniteMoeHybridForCausalLM"},
       .neighbours = true,
       .rope_factors = true,
       .rope_switch = true,
       .output_bias = true,
       .mlp_bias = true,
       .numbers = {{"attention.scale", "attention_multiplier", AttentionScale, true},
                   {"residual_scale", "residual_multiplier", ResidualMultiplier},
                   {"embedding_scale", "embedding_multiplier", EmbeddingMultiplier},
                   {"logit_scale", "logits_scaling", LogitDivisor, true}}},
      {.name = "chatglm",
       .families = {"GlmForCausalLM"},
       .neighbours = true,
       .partial = true,
       .square = true,
       .places = kJoinedMlp},
      {.name = "glm4", .families = {"Glm4ForCausalLM"}, .neighbours = true, .partial = true, .places = kJoinedMlp},
      {.name = "exaone4",
       .families = {"Exaone4ForCausalLM"},
       .square = true,
       .rope_factors = true,
       .full_every = 4,
       .windows_at = 64},
      {.name = "ernie4_5", .families = {"Ernie4_5ForCausalLM"}, .neighbours = true, .bias = "use_bias"},
      {.name = "seed_oss",
       .families = {"SeedOssForCausalLM"},
       .places = {{"post_attention_norm.weight", {&B::post_norm}}}},
      {.name = "mistral3", .families = {"Ministral3ForCausalLM"}, .neighbours = true, .query_scale = true},
      {.name = "starcoder2",
       .families = {"Starcoder2ForCausalLM"},
       .activation = "gelu_pytorch_tanh",
       .layer_norm = true,
       .square = true,
       .bias = "use_bias",
       .output_bias = true,
       .mlp_bias = true},
      {.name = "nemotron",
       .families = {"NemotronForCausalLM"},
       .activation = "relu2",
       .layer_norm = true,
       .partial = true,
       .square = true,
       .output_bias = true,
       .mlp_bias = true,
       .head = Head::kOwn},
      {.name = "arcee",
       .families = {"ArceeForCausalLM"},
       .activation = "relu2",
       .neighbours = true,
       .rope_factors = true,
       .qkv_bias = false},
      {.name = "command-r",
       .families = {"CohereForCausalLM"},
       .layer_norm = true,
       .neighbours = true,
       .square = true,
       .head = Head::kTied,
       .most_layers = 63,
       .numbers = {{"logit_scale", "logit_scale", LogitScale, true}}},
      {.name = "cohere2",
       .families = {"Cohere2ForCausalLM"},
       .layer_norm = true,
       .neighbours = true,
       .square = true,
       .head = Head::kTied,
       .full_every = 4,
       .always_windows = true,
       .numbers = {{"logit_scale", "logit_scale", LogitScale, true}}},
      // After the architectures of these families, which hold models whose layers are alike.
      {.name = "deci",
       .families = {"LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"},
       .neighbours = true,
       .rope_factors = true,
       .output_bias = true,
       .mlp_bias = true,
       .by_layer = true},
  };
  return rows;
}

struct NamedMember {
  TensorView B::*member;
  const char* name;
};
// The names that all architectures have in common.
constexpr NamedMember kNames[] = {
    {&B::input_norm, "attn_norm.weight"},
    {&B::input_norm_bias, "attn_norm.bias"},
    {&B::shared_norm, "attn_norm.weight"},
    {&B::q, "attn_q.weight"},
    {&B::k, "attn_k.weight"},
    {&B::v, "attn_v.weight"},
    {&B::o, "attn_output.weight"},
    {&B::q_bias, "attn_q.bias"},
    {&B::k_bias, "attn_k.bias"},
    {&B::v_bias, "attn_v.bias"},
    {&B::o_bias, "attn_output.bias"},
    {&B::sinks, "attn_sinks.weight"},
    {&B::q_norm, "attn_q_norm.weight"},
    {&B::k_norm, "attn_k_norm.weight"},
    {&B::attention_update_norm, "post_attention_norm.weight"},
    {&B::post_norm, "ffn_norm.weight"},
    {&B::post_norm_bias, "ffn_norm.bias"},
    {&B::gate, "ffn_gate.weight"},
    {&B::up, "ffn_up.weight"},
    {&B::down, "ffn_down.weight"},
    {&B::gate_bias, "ffn_gate.bias"},
    {&B::up_bias, "ffn_up.bias"},
    {&B::down_bias, "ffn_down.bias"},
    {&B::mlp_update_norm, "post_ffw_norm.weight"},
    {&B::xielu_p, "xielu.alpha_p"},
    {&B::xielu_n, "xielu.alpha_n"},
    {&B::xielu_beta, "xielu.beta"},
    {&B::xielu_eps, "xielu.eps"},
    {&B::router, "ffn_gate_inp.weight"},
    {&B::router_bias, "ffn_gate_inp.bias"},
    {&B::shared_gate, "ffn_gate_shexp.weight"},
    {&B::shared_up, "ffn_up_shexp.weight"},
    {&B::shared_down, "ffn_down_shexp.weight"},
    {&B::shared_weight, "ffn_gate_inp_shexp.weight"},
    {&B::delta_qkv, "attn_qkv.weight"},
    {&B::delta_z, "attn_gate.weight"},
    {&B::delta_conv, "ssm_conv1d.weight"},
    {&B::delta_a_log, "ssm_a"},
    {&B::delta_dt_bias, "ssm_dt.bias"},
    {&B::delta_norm, "ssm_norm.weight"},
    {&B::convolution_in, "shortconv.in_proj.weight"},
    {&B::convolution, "shortconv.conv.weight"},
};
constexpr ExpertPlaces kGgufExperts = {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight",
                                       "ffn_gate_exps.bias",   "ffn_up_exps.bias",   "ffn_down_exps.bias"};

bool ReadsBias(const GgufArchitecture& architecture, const BlockTensor& row) {
  const auto is = [&](std::initializer_list<TensorView B::*> members) {
    return std::find(members.begin(), members.end(), row.member) != members.end();
  };
  if (is({&B::q_bias, &B::k_bias, &B::v_bias})) return architecture.qkv_bias;
  if (is({&B::o_bias})) return architecture.output_bias;
  return architecture.mlp_bias || !is({&B::gate_bias, &B::up_bias, &B::down_bias});
}

// True if GGUF stores the rows of the tensor in the interleaved order of llama.cpp's rotary embedding: queries and keys
// of an architecture that turns pairs of neighbours, in a family that does not.
bool IsInterleaved(const GgufArchitecture& architecture, const ModelConfig& config, const BlockTensor& row) {
  return architecture.neighbours && !config.rope.interleaved &&
         (row.member == &B::q || row.member == &B::k || row.member == &B::q_bias || row.member == &B::k_bias);
}

}  // namespace

const GgufArchitecture* FindGgufArchitecture(std::string_view name) {
  for (const GgufArchitecture& row : Architectures())
    if (name == row.name) return &row;
  return nullptr;
}

const GgufArchitecture* GgufArchitectureOf(const ModelConfig& config) {
  for (const GgufArchitecture& row : Architectures())
    for (const char* family : row.families)
      if (config.family == FindFamily(family)->name) return &row;
  return nullptr;
}

const char* GgufName(const BlockTensor& tensor) {
  for (const NamedMember& row : kNames)
    if (row.member == tensor.member) return row.name;
  return nullptr;
}

std::string KnownGgufArchitectures() {
  std::vector<std::string_view> names;
  for (const GgufArchitecture& row : Architectures()) names.emplace_back(row.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

float DecayInGguf(float a_log) { return -std::exp(a_log); }
float DecayFromGguf(float decay) { return std::log(-decay); }

std::vector<CheckpointTensor> GgufTensorsOf(const GgufArchitecture& architecture, const ModelConfig& config) {
  Check(!architecture.needs_bias || config.block.qkv_bias,
        "llama.cpp's architecture {} has no model without biases of the attention", architecture.name);
  std::vector<TensorPlace> places = architecture.places;
  for (const BlockTensor& row : BlockTensors()) {
    if (row.Shape(config).empty()) continue;
    const bool placed = std::any_of(places.begin(), places.end(), [&](const TensorPlace& place) {
      return (place.setting == nullptr || config.block.*place.setting) &&
             std::find(place.members.begin(), place.members.end(), row.member) != place.members.end();
    });
    const char* const name = GgufName(row);
    Check((placed || name != nullptr) && ReadsBias(architecture, row),
          "llama.cpp's architecture {} has no tensor for {}", architecture.name, row.name);
    if (!placed) places.push_back({name, {row.member}});
  }
  std::vector<CheckpointTensor> tensors = CheckpointTensors(config, places, &kGgufExperts);
  for (CheckpointTensor& tensor : tensors) {
    const BlockTensor& row = *tensor.parts.front();
    if (IsInterleaved(architecture, config, row))
      tensor.order = InterleavedHalves(tensor.shape[0], row.output == Axis::kQueries ? config.heads : config.kv_heads);
    // llama.cpp leaves out the sides of 1: (channels, 1, width) and (1, hidden).
    if (row.kind == BlockTensor::Kind::kConvolution) tensor.shape.erase(tensor.shape.begin() + 1);
    if (row.member == &B::shared_weight) tensor.shape.erase(tensor.shape.begin());
  }
  return tensors;
}

}  // namespace shiftrt
