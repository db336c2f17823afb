// SPDX-License-Identifier: Apache-2.0
// The table of model families: how a config.json of the family describes its blocks, and where its checkpoints store
// the tensors of a block.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/config.h"
#include "models/row_order.h"

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
  bool BlockSpec::*setting = nullptr;                          // only blocks where this is true store it so; null: all
  RowOrder (*order)(const ModelConfig& of_block) = nullptr;    // the order of all members' rows; null: the members' own
  RowOrder (*columns)(const ModelConfig& of_block) = nullptr;  // the columns' likewise
};

// The properties of a family's rotary embedding, besides the settings that all families read.
struct FamilyRope {
  double partial = 0;                 // the default of partial_rotary_factor; 0: the family does not read it
  bool interleaved = false;           // RopeSpec::interleaved
  bool longrope = false;              // reads longrope, also under the names "su" and "yarn"
  bool query_beta = false;            // reads llama_4_scaling_beta
  bool ntk_alpha = false;             // reads alpha, which stretches the base of dynamic RoPE
  bool by_layer_type = false;         // sliding layers have a RoPE of their own: ModelConfig::second_rope
  const char* local_theta = nullptr;  // the key of that one's base; null: rope_theta
};

// The names, relative to the block, under which checkpoints store the tensors of the experts. The number of the expert
// stands for {}; a name without it is that of one tensor of all experts, (experts, rows, columns) or, of a bias,
// (experts, rows). If two names are the same, that tensor has the rows of both in each expert.
struct ExpertPlaces {
  const char *gate, *up, *down;
  const char *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // null: no family with biases has these
  bool interleaved = false;  // in a tensor with the rows of both gate and up, those of the same number are neighbours
  bool transposed = false;   // matrices of all experts are (experts, columns, rows)

  bool Together() const { return std::string_view(gate).find("{}") == std::string_view::npos; }
};

struct Family {
  const char* architecture;  // config.json's architectures[0]
  const char* name;
  const char* model_type = nullptr;  // config.json's model_type; null: the family's name
  BlockSpec (*block)(const ConfigReader& config, const ModelConfig& model);  // sizes and RoPE of `model` are set
  const char* since = "0.2.0";                     // the first version of shiftrt that runs it
  const char* models = "";                         // well-known models, for the list of families
  const char* defaults = "{}";                     // defaults of settings that config.json lacks, as JSON
  const char* intermediate = "intermediate_size";  // the key of the MLP's size
  const char* eps = "rms_norm_eps";                // the key of the norms' epsilon
  // The units of an MLP, from the number at `intermediate`; null: that is it.
  int64_t (*units)(const ConfigReader& config, int64_t stated) = nullptr;
  const char* final_norm = "model.norm.weight";  // the name of the last norm in checkpoints
  FamilyRope rope = {};
  // Second names of keys, and the first, which count for less.
  std::vector<std::pair<const char*, const char*>> aliases = {};
  std::vector<const char*> harmless = {};  // keys that this family's class ignores, besides those of all families
  std::vector<TensorPlace> places = {};
  const ExpertPlaces* experts = nullptr;  // null: names as in models/block_tensors.h

  std::string_view Type() const { return model_type != nullptr ? model_type : name; }
};

// The order of the projections in the files of Qwen 3 Next: the rows of each key head, and of the value heads that it
// serves, are together.
RowOrder DeltaQkvzByKeyHead(const ModelConfig& config);
RowOrder DeltaBaByKeyHead(const ModelConfig& config);

const std::vector<Family>& Families();
// Null for an architecture that is not in the table.
const Family* FindFamily(std::string_view architecture);

// The name of the model's last norm in the checkpoints of its family.
const char* FinalNormName(const ModelConfig& config);

// A tensor of a block as the checkpoints of a family hold it.
struct CheckpointTensor {
  std::string name;            // relative to the block
  std::vector<int64_t> shape;  // the shape of all its parts together, or that in ExpertPlaces if it holds all experts
  std::vector<const BlockTensor*> parts;
  RowOrder order = nullptr, columns = nullptr;  // the orders of all parts' rows and columns
  bool together = false;                        // it holds all experts
  bool transposed = false;                      // ExpertPlaces::transposed
};
// All tensors of a block of this configuration (ConfigOfBlock), in the order in which they are written.
std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config);
// The same in checkpoints that have the matrices of all experts together, as classes of transformers hold them.
std::vector<CheckpointTensor> CheckpointTensorsWithExpertsTogether(const ModelConfig& config);
inline constexpr const char* kExpertsTogether = "mlp.experts.gate_up_proj";
// The same with other places than those of the family.
std::vector<CheckpointTensor> CheckpointTensors(const ModelConfig& config, const std::vector<TensorPlace>& places,
                                                const ExpertPlaces* experts = nullptr);

}  // namespace shiftrt
