// SPDX-License-Identifier: Apache-2.0
#include "models/block_tensors.h"

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
    {"self_attn.q_proj.weight",         &B::q,                     kAttention, kMatrix, kQueries,      kHidden,       nullptr},
    {"self_attn.k_proj.weight",         &B::k,                     kAttention, kMatrix, kKeyValues,    kHidden,       nullptr},
    {"self_attn.v_proj.weight",         &B::v,                     kAttention, kMatrix, kKeyValues,    kHidden,       nullptr},
    {"self_attn.o_proj.weight",         &B::o,                     kAttention, kMatrix, kHidden,       kQueries,      nullptr},
    {"self_attn.q_proj.bias",           &B::q_bias,                kAttention, kBias,   kQueries,      kNone,         &S::qkv_bias},
    {"self_attn.k_proj.bias",           &B::k_bias,                kAttention, kBias,   kKeyValues,    kNone,         &S::qkv_bias},
    {"self_attn.v_proj.bias",           &B::v_bias,                kAttention, kBias,   kKeyValues,    kNone,         &S::qkv_bias},
    {"self_attn.o_proj.bias",           &B::o_bias,                kAttention, kBias,   kHidden,       kNone,         &S::output_bias},
    {"self_attn.q_norm.weight",         &B::q_norm,                kAttention, kNorm,   kQueryNorm,    kNone,         &S::qk_norm},
    {"self_attn.k_norm.weight",         &B::k_norm,                kAttention, kNorm,   kKeyNorm,      kNone,         &S::qk_norm},
    {"attention_update_norm.weight",    &B::attention_update_norm, kAttention, kNorm,   kHidden,       kNone,         &S::update_norms},
    {"post_attention_layernorm.weight",  &B::post_norm,             kMlp,       kNorm,   kHidden,       kNone,         &S::input_norms},
    {"post_attention_layernorm.bias",    &B::post_norm_bias,        kMlp,       kBias,   kHidden,       kNone,         &S::input_norms, &S::norm_bias},
    {"mlp.gate_proj.weight",            &B::gate,                  kMlp,       kMatrix, kIntermediate, kHidden,       &S::gated},
    {"mlp.up_proj.weight",              &B::up,                    kMlp,       kMatrix, kIntermediate, kHidden,       nullptr},
    {"mlp.down_proj.weight",            &B::down,                  kMlp,       kMatrix, kHidden,       kIntermediate, nullptr},
    {"mlp.gate_proj.bias",              &B::gate_bias,             kMlp,       kBias,   kIntermediate, kNone,         &S::mlp_bias, &S::gated},
    {"mlp.up_proj.bias",                &B::up_bias,               kMlp,       kBias,   kIntermediate, kNone,         &S::mlp_bias},
    {"mlp.down_proj.bias",              &B::down_bias,             kMlp,       kBias,   kHidden,       kNone,         &S::mlp_bias},
    {"mlp_update_norm.weight",          &B::mlp_update_norm,       kMlp,       kNorm,   kHidden,       kNone,         &S::update_norms},
};
// clang-format on

// Every member of BlockWeights needs a row: without one, nothing would load it.
static_assert(sizeof(BlockWeights) == std::size(kBlockTensors) * sizeof(TensorView));

}  // namespace

int64_t Size(const ModelConfig& config, Axis axis) { return Size(config, axis, config.intermediate); }

int64_t Size(const ModelConfig& config, Axis axis, int64_t units) {
  switch (axis) {
    case kNone: return 1;
    case kHidden: return config.hidden;
    case kQueries: return config.query_dim();
    case kKeyValues: return config.kv_dim();
    case kQueryNorm: return config.block.qk_norm_whole ? config.query_dim() : config.head_dim;
    case kKeyNorm: return config.block.qk_norm_whole ? config.kv_dim() : config.head_dim;
    case kIntermediate: return units;
  }
  return 0;
}

std::vector<int64_t> BlockTensor::Shape(const ModelConfig& config) const { return Shape(config, config.intermediate); }

std::vector<int64_t> BlockTensor::Shape(const ModelConfig& config, int64_t units) const {
  for (bool BlockSpec::*const needed : {setting, also})
    if (needed != nullptr && !(config.block.*needed)) return {};
  if (kind == kMatrix) return {Size(config, output, units), Size(config, input, units)};
  return {Size(config, output, units)};
}

std::span<const BlockTensor> BlockTensors() { return kBlockTensors; }

}  // namespace shiftrt
