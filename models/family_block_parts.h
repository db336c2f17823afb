// SPDX-License-Identifier: Apache-2.0
// The parts of blocks that several families read from their config.json in the same way (models/family_blocks.h).
#pragma once

#include <cstdint>

#include "models/config.h"

namespace shiftrt {

class ConfigReader;

float InverseRoot(double x);  // 1 / sqrt(x)

// The number of layers of which the last one is different.
int64_t Pattern(const ConfigReader& config, const char* key, int64_t fallback);
// True for all layers but every `pattern`-th.
inline auto FullEvery(int64_t pattern) {
  return [pattern](int64_t layer) { return (layer + 1) % pattern != 0; };
}

// A Llama block without biases, with which most families start.
BlockSpec PlainBlock(const ConfigReader& config, const ModelConfig& model);

// Reads the mixtures of experts: `experts_key` has their number, `units_key` the units of each. Layers of
// mlp_only_layers, and those whose number, counted from 1, decoder_sparse_step does not divide, have an MLP.
void ReadMixture(const ConfigReader& config, const ModelConfig& model, const char* experts_key, const char* units_key,
                 BlockSpec& block);
// The shared expert of each mixture, after ReadMixture().
void ReadSharedExpert(const ConfigReader& config, BlockSpec& block);

}  // namespace shiftrt
