// SPDX-License-Identifier: Apache-2.0
#include "models/block_tensors.h"

#include <array>
#include <deque>
#include <mutex>
#include <string>

#include "runtime/check.h"

namespace shiftrt {

namespace {

using enum Axis;
using enum BlockTensor::Kind;
using B = BlockWeights;
using S = BlockSpec;

constexpr Halves kAttention = Halves::kAttention, kMlp = Halves::kMlp, kBothHalves = Halves::kBoth;

// clang-format off
constexpr BlockTensor kBlockTensors[] = {
    // name                             member                     half        kind     output         input          settings
    {"input_layernorm.weight",           &B::input_norm,            kAttention, kNorm,   kHidden,       kNone,         &S::input_norms},
    {"input_layernorm.bias",             &B::input_norm_bias,       kAttention, kBias,   kHidden,       kNone,         &S::input_norms, &S::norm_bias},
    {"shared_layernorm.weight",          &B::shared_norm,           kBothHalves,kNorm,   kHidden,       kNone,         &S::shared_norm},
    {"shared_layernorm.bias",            &B::shared_norm_bias,      kBothHalves,kBias,   kHidden,       kNone,         &S::shared_norm, &S::norm_bias},
    {"self_attn.q_proj.weight",         &B::q,                     kAttention, kMatrix, kQueries,      kHidden,       &S::attention},
    {"self_attn.k_proj.weight",         &B::k,                     kAttention, kMatrix, kKeyValues,    kHidden,       &S::attention},
    {"self_attn.v_proj.weight",         &B::v,                     kAttention, kMatrix, kKeyValues,    kHidden,       &S::attention},
    {"self_attn.o_proj.weight",         &B::o,                     kAttention, kMatrix, kHidden,       kHeads,        nullptr},
    {"self_attn.q_proj.bias",           &B::q_bias,                kAttention, kBias,   kQueries,      kNone,         &S::qkv_bias, &S::attention},
    {"self_attn.k_proj.bias",           &B::k_bias,                kAttention, kBias,   kKeyValues,    kNone,         &S::qkv_bias, &S::attention},
    {"self_attn.v_proj.bias",           &B::v_bias,                kAttention, kBias,   kKeyValues,    kNone,         &S::qkv_bias, &S::attention},
    {"self_attn.o_proj.bias",           &B::o_bias,                kAttention, kBias,   kHidden,       kNone,         &S::output_bias, &S::attention},
    {"self_attn.sinks",                 &B::sinks,                 kAttention, kPerHead, kSinks,       kNone,         &S::attention_sinks, &S::attention},
    {"self_attn.q_norm.weight",         &B::q_norm,                kAttention, kNorm,   kQueryNorm,    kNone,         &S::qk_norm, &S::attention},
    {"self_attn.k_norm.weight",         &B::k_norm,                kAttention, kNorm,   kKeyNorm,      kNone,         &S::qk_norm, &S::attention},
    {"attention_update_norm.weight",    &B::attention_update_norm, kAttention, kNorm,   kHidden,       kNone,         &S::update_norms},
    {"post_attention_layernorm.weight",  &B::post_norm,             kMlp,       kNorm,   kHidden,       kNone,         &S::input_norms},
    {"post_attention_layernorm.bias",    &B::post_norm_bias,        kMlp,       kBias,   kHidden,       kNone,         &S::input_norms, &S::norm_bias},
    {"mlp.gate_proj.weight",            &B::gate,                  kMlp,       kMatrix, kIntermediate, kHidden,       &S::gated, &S::dense},
    {"mlp.up_proj.weight",              &B::up,                    kMlp,       kMatrix, kIntermediate, kHidden,       &S::dense},
    {"mlp.down_proj.weight",            &B::down,                  kMlp,       kMatrix, kHidden,       kIntermediate, &S::dense},
    {"mlp.gate_proj.bias",              &B::gate_bias,             kMlp,       kBias,   kIntermediate, kNone,         &S::mlp_bias, &S::gated},
    {"mlp.up_proj.bias",                &B::up_bias,               kMlp,       kBias,   kIntermediate, kNone,         &S::mlp_bias},
    {"mlp.down_proj.bias",              &B::down_bias,             kMlp,       kBias,   kHidden,       kNone,         &S::mlp_bias},
    {"mlp.act_fn.alpha_p",              &B::xielu_p,               kMlp,       kNumber, kOne,          kNone,         &S::xielu},
    {"mlp.act_fn.alpha_n",              &B::xielu_n,               kMlp,       kNumber, kOne,          kNone,         &S::xielu},
    {"mlp.act_fn.beta",                 &B::xielu_beta,            kMlp,       kConstant, kOne,        kNone,         &S::xielu},
    {"mlp.act_fn.eps",                  &B::xielu_eps,             kMlp,       kConstant, kOne,        kNone,         &S::xielu},
    {"mlp_update_norm.weight",          &B::mlp_update_norm,       kMlp,       kNorm,   kHidden,       kNone,         &S::update_norms},
    {"linear_attn.in_proj_qkv.weight",  &B::delta_qkv,             kAttention, kMatrix, kDeltaChannels,kHidden,       &S::gated_delta},
    {"linear_attn.in_proj_z.weight",    &B::delta_z,               kAttention, kMatrix, kDeltaValues,  kHidden,       &S::gated_delta},
    {"linear_attn.in_proj_b.weight",    &B::delta_b,               kAttention, kMatrix, kDeltaHeads,   kHidden,       &S::gated_delta},
    {"linear_attn.in_proj_a.weight",    &B::delta_a,               kAttention, kMatrix, kDeltaHeads,   kHidden,       &S::gated_delta},
    {"linear_attn.conv1d.weight",       &B::delta_conv,            kAttention, kConvolution, kDeltaKernel, kNone,     &S::gated_delta},
    {"linear_attn.A_log",               &B::delta_a_log,           kAttention, kPerHead, kDeltaHeads, kNone,       &S::gated_delta},
    {"linear_attn.dt_bias",             &B::delta_dt_bias,         kAttention, kPerHead, kDeltaHeads, kNone,       &S::gated_delta},
    {"linear_attn.norm.weight",         &B::delta_norm,            kAttention, kNorm,   kDeltaNorm,    kNone,         &S::gated_delta},
    {"conv.in_proj.weight",             &B::convolution_in,        kAttention, kMatrix, kConvolutionInput, kHidden,   &S::short_convolution},
    {"conv.conv.weight",                &B::convolution,           kAttention, kConvolution, kConvolutionKernel, kNone, &S::short_convolution},
    {"mlp.gate.weight",                 &B::router,                kMlp,       kMatrix, kExperts,      kHidden,       &S::mixed},
    {"mlp.gate.bias",                   &B::router_bias,           kMlp,       kBias,   kExperts,      kNone,         &S::mixed, &S::expert_bias},
    {"mlp.shared_expert.gate_proj.weight", &B::shared_gate,        kMlp,       kMatrix, kSharedUnits,  kHidden,       &S::mixed, &S::shared_expert},
    {"mlp.shared_expert.up_proj.weight", &B::shared_up,            kMlp,       kMatrix, kSharedUnits,  kHidden,       &S::mixed, &S::shared_expert},
    {"mlp.shared_expert.down_proj.weight", &B::shared_down,        kMlp,       kMatrix, kHidden,       kSharedUnits,  &S::mixed, &S::shared_expert},
    {"mlp.shared_expert_gate.weight",   &B::shared_weight,         kMlp,       kMatrix, kOne,          kHidden,       &S::mixed, &S::shared_expert},
};
// clang-format on

// Every member of BlockWeights and of ExpertWeights needs a row: without one, nothing would load it.
static_assert(sizeof(BlockWeights) ==
              std::size(kBlockTensors) * sizeof(TensorView) + sizeof(std::vector<ExpertWeights>));
static_assert(sizeof(ExpertWeights) == 6 * sizeof(TensorView));

// The rows of an expert, whose names they own.
struct ExpertRows {
  explicit ExpertRows(int64_t expert) {
    const auto name = [&](const char* tensor) { return fmt::format("mlp.experts.{}.{}", expert, tensor); };
    names = {name("gate_proj.weight"), name("up_proj.weight"), name("down_proj.weight"),
             name("gate_proj.bias"),   name("up_proj.bias"),   name("down_proj.bias")};
    const auto matrix = [&](size_t i, Axis output, Axis input, TensorView ExpertWeights::*of) {
      return BlockTensor{names[i].c_str(), nullptr, kMlp, kMatrix, output, input, &S::mixed, nullptr, expert, of};
    };
    const auto bias = [&](size_t i, Axis output, TensorView ExpertWeights::*of) {
      return BlockTensor{names[i].c_str(), nullptr, kMlp, kBias, output, kNone, &S::mixed, &S::expert_bias, expert, of};
    };
    using E = ExpertWeights;
    rows = {matrix(0, kExpertUnits, kHidden, &E::gate), matrix(1, kExpertUnits, kHidden, &E::up),
            matrix(2, kHidden, kExpertUnits, &E::down), bias(3, kExpertUnits, &E::gate_bias),
            bias(4, kExpertUnits, &E::up_bias),         bias(5, kHidden, &E::down_bias)};
  }
  ExpertRows(const ExpertRows&) = delete;
  ExpertRows& operator=(const ExpertRows&) = delete;

  std::array<std::string, 6> names;
  std::array<BlockTensor, 6> rows;
};

}  // namespace

int64_t Size(const ModelConfig& config, Axis axis) { return Size(config, axis, config.intermediate); }

int64_t Size(const ModelConfig& config, Axis axis, int64_t units) {
  switch (axis) {
    case kNone: return 1;
    case kHidden: return config.hidden;
    case kQueries: return config.query_dim() * (config.block.attention_gate ? 2 : 1);
    case kKeyValues: return config.kv_dim();
    case kHeads: return config.heads_dim();
    case kQueryNorm: return config.block.qk_norm_whole ? config.query_dim() : config.head_dim;
    case kKeyNorm: return config.block.qk_norm_whole ? config.kv_dim() : config.head_dim;
    case kIntermediate: return units;
    case kExperts: return config.block.mixture.experts;
    case kExpertUnits: return config.block.mixture.units;
    case kSharedUnits: return config.block.mixture.shared_units;
    case kOne: return 1;
    case kSinks: return config.heads;
    case kDeltaChannels: return config.block.delta.channels();
    case kDeltaValues: return config.block.delta.values();
    case kDeltaHeads: return config.block.delta.value_heads;
    case kDeltaKernel: return config.block.delta.channels() * config.block.delta.conv_width;
    case kDeltaNorm: return config.block.delta.value_dim;
    case kConvolutionInput: return 3 * config.block.convolution.channels;
    case kConvolutionKernel: return config.block.convolution.channels * config.block.convolution.width;
  }
  return 0;
}

ModelConfig ConfigOfBlock(ModelConfig config, int64_t layer, int64_t units) {
  if (!config.block.mixers.empty()) config.block.SetMixers({config.block.MixerOf(layer)});
  config.block.mixed = config.block.mixture.In(layer);
  config.block.dense = !config.block.mixed;
  if (units > 0) config.intermediate = units;
  return config;
}

std::vector<int64_t> BlockTensor::Shape(const ModelConfig& config) const { return Shape(config, config.intermediate); }

std::vector<int64_t> BlockTensor::Shape(const ModelConfig& config, int64_t units) const {
  for (bool BlockSpec::*const needed : {setting, also})
    if (needed != nullptr && !(config.block.*needed)) return {};
  if (kind == kMatrix) return {Size(config, output, units), Size(config, input, units)};
  if (kind == kConvolution) {
    const ConvolutionShape of = output == kDeltaKernel ? config.block.delta.convolution() : config.block.convolution;
    return {of.channels, 1, of.width};
  }
  return {Size(config, output, units)};
}

std::span<const BlockTensor> BlockTensors() { return kBlockTensors; }

std::span<const BlockTensor> ExpertTensors(int64_t expert) {
  static std::mutex mutex;
  static std::deque<ExpertRows> made;  // its elements stay where they are
  const std::lock_guard lock(mutex);
  while (std::ssize(made) <= expert) made.emplace_back(std::ssize(made));
  return made[expert].rows;
}

std::vector<const BlockTensor*> AllTensors(const ModelConfig& of_block) {
  std::vector<const BlockTensor*> rows;
  for (const BlockTensor& row : kBlockTensors)
    if (!row.Shape(of_block).empty()) rows.push_back(&row);
  const int64_t experts = of_block.block.mixed ? of_block.block.mixture.experts : 0;
  for (int64_t expert = 0; expert < experts; ++expert)
    for (const BlockTensor& row : ExpertTensors(expert))
      if (!row.Shape(of_block).empty()) rows.push_back(&row);
  return rows;
}

}  // namespace shiftrt
