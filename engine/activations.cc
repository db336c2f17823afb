// SPDX-License-Identifier: Apache-2.0
#include "engine/activations.h"

#include <algorithm>

namespace shiftrt {

int64_t ActivationBytesPerToken(const ModelConfig& config, DType dtype) {
  const int64_t narrow = config.hidden + 2 * config.query_dim() + 2 * (config.query_dim() + config.kv_dim()) +
                         2 * config.kv_dim() + 3 * config.intermediate;
  return 12 * config.hidden + narrow * static_cast<int64_t>(SizeOf(dtype));  // stream and updates are float32
}

int64_t CpuActivationBytesPerToken(const ModelConfig& config) {
  // The halves of a block use the same memory one after the other.
  const MixtureSpec& mixture = config.block.mixture;
  const int64_t attention = 2 * config.query_dim() + 2 * config.kv_dim(),
                dense = config.block.dense ? 2 * config.intermediate : 0,
                mixed = config.block.mixed ? mixture.active * (2 * mixture.units + config.hidden) + mixture.experts : 0,
                mlp = std::max(dense, mixed);
  return 4 * (3 * config.hidden + std::max(attention, mlp) + config.head_dim);
}

int64_t KvBytesPerPosition(const ModelConfig& config, const DepthPlan& plan, DType dtype) {
  return 2 * config.kv_dim() * plan.attention_blocks() * static_cast<int64_t>(SizeOf(dtype));
}

}  // namespace shiftrt
