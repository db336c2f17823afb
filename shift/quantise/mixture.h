// SPDX-License-Identifier: Apache-2.0
// The mixtures of types by which GGUF files are known (Q4_K_M): which matrix gets which type.
#pragma once

#include <span>
#include <string_view>

#include "models/block_tensors.h"
#include "runtime/block_types.h"

namespace shiftrt {

// Source: llama_tensor_get_type() of llama.cpp, without an importance matrix.
struct Mixture {
  const char* name;  // "q4_k_m"
  BlockType type;    // the type of a matrix that has no field below
  // The type of the value projection: as a rule, in the blocks that get more bits, and in the first two.
  BlockType value, value_more, value_first;
  BlockType output;  // the type of the attention's output projection
  // The type of the down projection: as a rule, in the blocks that get more bits, and in the first sixteenth.
  BlockType down, down_more, down_first;
  BlockType head;
  const char* summary;  // for people: the bits of the blocks of a Qwen2 of 1.5B
};
std::span<const Mixture> Mixtures();
// Throws UsageError listing the names for an unknown one.
const Mixture& FindMixture(std::string_view name);

// The type of a matrix of kept block `index` of `count`. A type whose blocks are longer than a divisor of `columns` is
// replaced by the next larger type with blocks of 32; float32 if 32 is no divisor: the matrix stays as it is.
BlockType TypeIn(const Mixture& mixture, const BlockTensor& tensor, int64_t index, int64_t count, int64_t columns);
// The type of the head, or of the embedding table of a model that has no other table for the head.
BlockType HeadTypeIn(const Mixture& mixture, const ModelConfig& config);
// The type of the embedding table of a model whose head is another matrix.
BlockType TableTypeIn(const Mixture& mixture, const ModelConfig& config);

}  // namespace shiftrt
