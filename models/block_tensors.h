// SPDX-License-Identifier: Apache-2.0
// The one list of a block's tensors: what each is called, where it stands in BlockWeights, which half needs it and what
// its sides are. Loading, saving, counting, folding and scoring go through it, so that a new tensor is one new row.
// Which of them a family's checkpoints keep elsewhere is said in models/families.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/plan.h"
#include "models/weights.h"

namespace shiftrt {

// What a side of a tensor runs along: its length is Size().
enum class Axis : uint8_t { kNone, kHidden, kQueries, kKeyValues, kHeadDim, kIntermediate };
int64_t Size(const ModelConfig& config, Axis axis);  // 1 for kNone

struct BlockTensor {
  enum class Kind : uint8_t {
    kMatrix,  // y = x W', of shape (output, input)
    kBias,    // added to a matrix's output, of shape (output)
    kNorm,    // gain of an RMSNorm, of shape (output), which is its input too
  };

  const char* name;  // relative to the block, as most checkpoints have it: "self_attn.q_proj.weight"
  TensorView BlockWeights::*member;
  Halves half;  // the half that reads it: kAttention or kMlp
  Kind kind;
  Axis output, input;
  bool BlockSpec::*setting;  // a block where this is false lacks the tensor; null: each has it

  // Empty where the configuration lacks the tensor.
  std::vector<int64_t> Shape(const ModelConfig& config) const;
};

// In the order in which tensors are visited, written and hashed.
std::span<const BlockTensor> BlockTensors();

// Calls visit(row, tensor) for each tensor that the block has and that `halves` of it read, in the table's order.
template <typename Visit>
void ForEachTensor(const BlockWeights& block, Halves halves, const Visit& visit) {
  for (const BlockTensor& row : BlockTensors()) {
    const TensorView& tensor = block.*row.member;
    const bool read = row.half == Halves::kMlp ? RunsMlp(halves) : RunsAttention(halves);
    if (read && !tensor.empty()) visit(row, tensor);
  }
}
template <typename Visit>
void ForEachTensor(const BlockWeights& block, const Visit& visit) {
  ForEachTensor(block, Halves::kBoth, visit);
}

}  // namespace shiftrt
