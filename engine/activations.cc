// SPDX-License-Identifier: Apache-2.0
#include "engine/activations.h"

#include <algorithm>

namespace shiftrt {

namespace {

// Numbers per token between the products of a mixer that is no attention on a CPU.
int64_t RecurrentFloats(const ModelConfig& config) {
  const GatedDeltaShape& delta = config.block.delta;
  const int64_t of_delta = 2 * delta.channels() + 2 * delta.values() + 2 * delta.value_heads;
  return std::max(config.block.gated_delta ? of_delta : 0,
                  config.block.short_convolution ? 5 * config.block.convolution.channels : 0);
}

}  // namespace

int64_t ActivationBytesPerToken(const ModelConfig& config, DType dtype) {
  const int64_t narrow = config.hidden + 2 * config.query_dim() + 2 * (config.query_dim() + config.kv_dim()) +
                         2 * config.kv_dim() + 3 * config.intermediate;
  const GatedDeltaShape& delta = config.block.delta;
  const int64_t wide = 3 * config.hidden +  // stream and updates
                       delta.channels() + delta.values() + 4 * delta.value_heads + delta.chunk_floats();
  const int64_t of_delta = delta.channels() + 2 * delta.values();
  const MixtureSpec& mixture = config.block.mixture;
  const int64_t of_experts = mixture.active * (config.hidden + 3 * mixture.units),
                wide_of_experts = mixture.active * config.hidden + mixture.experts;
  return 4 * (wide + wide_of_experts) + (narrow + of_delta + of_experts) * static_cast<int64_t>(SizeOf(dtype));
}

int64_t CpuActivationBytesPerToken(const ModelConfig& config) {
  // The halves of a block use the same memory one after the other.
  const int64_t gates = config.block.attention_gate ? 3 * config.query_dim() : 0;
  const int64_t attention = std::max(2 * config.query_dim() + 2 * config.kv_dim() + gates, RecurrentFloats(config));
  const MixtureSpec& mixture = config.block.mixture;
  const int64_t dense = config.block.dense ? 2 * config.intermediate : 0, shared = 2 * mixture.shared_units,
                mixed = config.block.mixed
                            ? mixture.active * (2 * mixture.units + config.hidden) + mixture.experts + shared
                            : 0,
                mlp = std::max(dense, mixed);
  return 4 * (3 * config.hidden + std::max(attention, mlp) + config.head_dim);
}

int64_t KvBytesPerPosition(const ModelConfig& config, const DepthPlan& plan, DType dtype) {
  return 2 * config.kv_dim() * (plan.attention_blocks() - RecurrentBlocks(config, plan)) *
         static_cast<int64_t>(SizeOf(dtype));
}

int64_t RecurrentBlocks(const ModelConfig& config, const DepthPlan& plan) {
  const std::vector<const BlockStage*> all = plan.Blocks();
  return std::count_if(all.begin(), all.end(), [&](const BlockStage* block) {
    return RunsAttention(block->halves) && config.block.MixerOf(block->layer) != Mixer::kAttention;
  });
}

int64_t StateBytes(const ModelConfig& config, const DepthPlan& plan) {
  const int64_t of_block = config.block.StateFloats() + config.block.RowFloats();
  return RecurrentBlocks(config, plan) * of_block * static_cast<int64_t>(sizeof(float));
}

}  // namespace shiftrt
