// SPDX-License-Identifier: Apache-2.0
// The table of model families: how a config.json of the family describes its blocks, and where its checkpoints store
// the tensors of a block.
#pragma once

#include <string_view>
#include <vector>

#include "models/config.h"

namespace shiftrt {

class ConfigReader;
struct BlockTensor;
struct BlockWeights;
struct TensorView;

// A tensor of a checkpoint that models/block_tensors.h has under another name, or as several tensors: its name relative
// to the block, and the members of BlockWeights whose rows it holds, one below the other in the table's order.
struct TensorPlace {
  const char* name;
  std::vector<TensorView BlockWeights::*> members;
};

struct Family {
  const char* architecture;  // config.json's architectures[0]
  const char* name;
  BlockSpec (*block)(const ConfigReader& config, const ModelConfig& model);  // sizes and RoPE of `model` are set
  // Defaults for settings that config.json does not have.
  double rms_eps = 1e-6;
  bool tied_head = false;
  int64_t head_dim = 0;  // 0: hidden size / heads
  std::vector<TensorPlace> places = {};
};

const std::vector<Family>& Families();
// Null for an architecture that is not in the table.
const Family* FindFamily(std::string_view architecture);

// A tensor of a block as the checkpoints of a family hold it.
struct CheckpointTensor {
  const char* name;            // relative to the block
  std::vector<int64_t> shape;  // of all its parts together
  std::vector<const BlockTensor*> parts;
};
// All tensors of a block of this configuration, in the order in which they are written.
std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config);

}  // namespace shiftrt
