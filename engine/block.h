// SPDX-License-Identifier: Apache-2.0
// The body of a block: the order of its steps, on every device, for one token and for many, for inference and for
// training. Each half adds an update to the stream h: update = [norm](projections(norm(h))). The halves of a parallel
// block (BlockSpec::parallel) that run together read the same h.
//
// A step joins the operations that a device may fuse. Those who implement the steps own the activations between two of
// them, and so choose their type and their memory: engine/block_pass.h over the operations of engine/ops.h, for
// inference on the CPU and for training on every device, and, for inference on a GPU, engine/cuda/many_tokens.h and
// engine/cuda/one_token.h.
#pragma once

#include "models/block_spec.h"
#include "models/plan.h"

namespace shiftrt {

class Block {
 protected:
  explicit Block(const BlockSpec& spec) : spec_(spec) {}
  ~Block() = default;

  // Run a half of the stage. `slot` is the attention's in the call's cache.
  void RunAttention(const BlockStage& block, int64_t slot) {
    NormInput(block, Halves::kAttention);
    if (HasTwoInputs(block)) NormInput(block, Halves::kMlp);  // before the stream changes
    Attend(block, slot);
    Finish(block, Halves::kAttention);
  }
  void RunMlp(const BlockStage& block) {
    if (!IsParallel(block)) NormInput(block, Halves::kMlp);
    Gate(block);
    Finish(block, Halves::kMlp);
  }
  // True if both halves of the stage run and read the stream before the block. They have a norm each, whose outputs are
  // both kept until the MLP runs, or they share one, whose output both read.
  bool IsParallel(const BlockStage& block) const { return spec_.parallel && block.halves == Halves::kBoth; }
  bool HasTwoInputs(const BlockStage& block) const { return IsParallel(block) && !spec_.shared_norm; }

 private:
  // Computes the input of a half: the norm of the stream.
  virtual void NormInput(const BlockStage& block, Halves half) = 0;
  // From the attention's input: the products of queries, keys and values, their norms, RoPE, the write into the cache,
  // and the attention to all keys that the tokens see.
  virtual void Attend(const BlockStage& block, int64_t slot) = 0;
  // From the MLP's input: the products of gate and up, and the activation.
  virtual void Gate(const BlockStage& block) = 0;
  // The last product of a half, the norm that some families have for it, and the addition to the stream, of which a
  // part may stay pending until the stream is read.
  virtual void Finish(const BlockStage& block, Halves half) = 0;

  const BlockSpec& spec_;
};

}  // namespace shiftrt
