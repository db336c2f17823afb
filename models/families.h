// SPDX-License-Identifier: Apache-2.0
// The table of model families: what a config.json of the family says of its blocks, and where its checkpoints keep a
// block's tensors.
#pragma once

#include <string_view>
#include <vector>

#include "models/config.h"

namespace shiftrt {

class ConfigReader;
struct BlockTensor;
struct BlockWeights;
struct TensorView;

// Where a checkpoint keeps tensors of a block that models/block_tensors.h has under other names, or one by one: the
// name there, relative to the block, and the members whose rows it holds, one below the other in the table's order.
struct TensorPlace {
  const char* name;
  std::vector<TensorView BlockWeights::*> members;
};

struct Family {
  const char* architecture;  // config.json's architectures[0]
  const char* name;
  BlockSpec (*block)(const ConfigReader& config, const ModelConfig& model);  // `model` has its sizes and RoPE already
  // What counts where config.json is silent.
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
// All that a block of this configuration has, in the order in which they are written.
std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config);

}  // namespace shiftrt
