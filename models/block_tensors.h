// SPDX-License-Identifier: Apache-2.0
// The table of a block's tensors: the name of each, its member in BlockWeights, the half that reads it, and the sizes
// of its sides. Loading, saving, counting, folding and scoring use this table, so a new tensor is one new row.
// models/families.cc says which tensors a family's checkpoints store elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/plan.h"
#include "models/weights.h"

namespace shiftrt {

// The dimension that a side of a tensor has; Size() gives its length.
enum class Axis : uint8_t {
  kNone,
  kHidden,
  kQueries,  // the rows of q_proj, which may have gates
  kKeyValues,
  kHeads,  // ModelConfig::heads_dim()
  kQueryNorm,
  kKeyNorm,
  kIntermediate,
  kDeltaChannels,  // this and the next ones: sizes of GatedDeltaShape
  kDeltaValues,
  kDeltaHeads,
  kDeltaKernel,  // all weights of the convolution
  kDeltaNorm,
};
int64_t Size(const ModelConfig& config, Axis axis);  // 1 for kNone
// The same of a block whose MLP has so many units.
int64_t Size(const ModelConfig& config, Axis axis, int64_t units);

// `config` for one block: with the mixer of this layer alone, and with the units that its MLP has; 0: the
// configuration's.
ModelConfig ConfigOfBlock(ModelConfig config, int64_t layer, int64_t units);

struct BlockTensor {
  enum class Kind : uint8_t {
    kMatrix,       // y = x W', of shape (output, input)
    kBias,         // added to the output of a matrix or of a norm, of shape (output)
    kNorm,         // gain of a norm, of shape (output), which is its input too
    kConvolution,  // weights of each channel alone, of shape (channels, 1, width); output counts all of them
    kRecurrence,   // a setting of each head of a recurrence, of shape (output)
  };

  const char* name;  // relative to the block, as most checkpoints have it: "self_attn.q_proj.weight"
  TensorView BlockWeights::*member;
  Halves half;  // the half that reads it, or kBoth
  Kind kind;
  Axis output, input;
  bool BlockSpec::*setting;         // a block where this is false lacks the tensor; null: each has it
  bool BlockSpec::*also = nullptr;  // likewise

  // True for the norms of queries and keys, and of a gated delta network's heads.
  bool NormsHeads() const {
    return output == Axis::kQueryNorm || output == Axis::kKeyNorm || output == Axis::kDeltaNorm;
  }
  // Empty if no block of the configuration has the tensor. Where the mixers of layers differ, ConfigOfBlock() has the
  // configuration of one of them.
  std::vector<int64_t> Shape(const ModelConfig& config) const;
  // The same of a block whose MLP has so many units.
  std::vector<int64_t> Shape(const ModelConfig& config, int64_t units) const;
};

// True if these halves of a block read the tensor.
inline bool Reads(Halves halves, const BlockTensor& row) {
  return row.half == Halves::kBoth || (row.half == Halves::kMlp ? RunsMlp(halves) : RunsAttention(halves));
}

// All rows, in the order in which tensors are visited, written and hashed.
std::span<const BlockTensor> BlockTensors();

// Calls visit(row, tensor) in the table's order, for each tensor that the block has and that `halves` of it read.
template <typename Visit>
void ForEachTensor(const BlockWeights& block, Halves halves, const Visit& visit) {
  for (const BlockTensor& row : BlockTensors()) {
    const TensorView& tensor = block.*row.member;
    if (Reads(halves, row) && !tensor.empty()) visit(row, tensor);
  }
}
template <typename Visit>
void ForEachTensor(const BlockWeights& block, const Visit& visit) {
  ForEachTensor(block, Halves::kBoth, visit);
}

}  // namespace shiftrt
