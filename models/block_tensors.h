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
  kExperts,
  kExpertUnits,
  kSharedUnits,
  kOne,
  kSinks,
  kDeltaChannels,  // this and the next ones: sizes of GatedDeltaShape
  kDeltaValues,
  kDeltaHeads,
  kDeltaKernel,  // all weights of the convolution
  kDeltaNorm,
  kConvolutionInput,  // the parts that a short convolution multiplies
  kConvolutionKernel,
};
int64_t Size(const ModelConfig& config, Axis axis);  // 1 for kNone
// The same of a block whose MLP has so many units.
int64_t Size(const ModelConfig& config, Axis axis, int64_t units);

// `config` for one block: with the mixer of this layer alone, the kind of its MLP, and the units that this has; 0: the
// configuration's.
ModelConfig ConfigOfBlock(ModelConfig config, int64_t layer, int64_t units);

struct BlockTensor {
  enum class Kind : uint8_t {
    kMatrix,       // y = x W', of shape (output, input)
    kBias,         // added to the output of a matrix or of a norm, of shape (output)
    kNorm,         // gain of a norm, of shape (output), which is its input too
    kConvolution,  // weights of each channel alone, of shape (channels, 1, width); output counts all of them
    kPerHead,      // a number of each head of a recurrence or an attention, of shape (output)
    kNumber,       // a number of the block, of shape (1)
    kConstant,     // one that is not trained, which checkpoints have of shape ()
  };

  const char* name;  // relative to the block, as most checkpoints have it: "self_attn.q_proj.weight"
  TensorView BlockWeights::*member;
  Halves half;  // the half that reads it, or kBoth
  Kind kind;
  Axis output, input;
  bool BlockSpec::*setting;         // a block where this is false lacks the tensor; null: each has it
  bool BlockSpec::*also = nullptr;  // likewise
  // The number of the expert and the tensor in it, for a tensor of an expert, whose `member` is null.
  int64_t expert = -1;
  TensorView ExpertWeights::*of_expert = nullptr;

  const TensorView& In(const BlockWeights& block) const {
    static const TensorView kNone;
    if (expert < 0) return block.*member;
    return expert < static_cast<int64_t>(block.experts.size()) ? block.experts[expert].*of_expert : kNone;
  }
  TensorView& In(BlockWeights& block) const {
    if (expert < 0) return block.*member;
    if (expert >= static_cast<int64_t>(block.experts.size())) block.experts.resize(expert + 1);
    return block.experts[expert].*of_expert;
  }

  // True for the matrix, or its bias, whose output is the update of a half before its norm, or a term of it.
  bool EndsHalf() const {
    using B = BlockWeights;
    if (expert >= 0) return of_expert == &ExpertWeights::down || of_expert == &ExpertWeights::down_bias;
    return member == &B::o || member == &B::o_bias || member == &B::down || member == &B::down_bias ||
           member == &B::shared_down;
  }
  // True for the norms of queries and keys, and of a gated delta network's heads.
  bool NormsHeads() const {
    return output == Axis::kQueryNorm || output == Axis::kKeyNorm || output == Axis::kDeltaNorm;
  }
  bool IsNumber() const { return kind == Kind::kNumber || kind == Kind::kConstant; }
  // True if the model's offset of norms is added to the tensor.
  bool HasNormOffset() const { return kind == Kind::kNorm && output != Axis::kDeltaNorm; }
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

// The rows that each kind of block has once, in the order in which tensors are visited, written and hashed.
std::span<const BlockTensor> BlockTensors();
// The rows of an expert of a mixture, which come after those, in the order of the experts. They stay valid.
std::span<const BlockTensor> ExpertTensors(int64_t expert);
// All rows of a block with this configuration (ConfigOfBlock).
std::vector<const BlockTensor*> AllTensors(const ModelConfig& of_block);

// Calls visit(row, tensor) in the table's order, for each tensor that the block has and that `halves` of it read.
template <typename Visit>
void ForEachTensor(const BlockWeights& block, Halves halves, const Visit& visit) {
  for (const BlockTensor& row : BlockTensors()) {
    const TensorView& tensor = block.*row.member;
    if (Reads(halves, row) && !tensor.empty()) visit(row, tensor);
  }
  if (!RunsMlp(halves)) return;
  for (size_t expert = 0; expert < block.experts.size(); ++expert)
    for (const BlockTensor& row : ExpertTensors(static_cast<int64_t>(expert)))
      if (const TensorView& tensor = row.In(block); !tensor.empty()) visit(row, tensor);
}
template <typename Visit>
void ForEachTensor(const BlockWeights& block, const Visit& visit) {
  ForEachTensor(block, Halves::kBoth, visit);
}

}  // namespace shiftrt
