// SPDX-License-Identifier: Apache-2.0
// Tensors with computed values that a plan uses in place of the model's (BlockStage::own, DepthPlan::output).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "models/plan.h"
#include "models/weights.h"

namespace shiftrt {

// A copy of a block with some tensors of its own in place of the model's.
class OwnBlock {
 public:
  explicit OwnBlock(const BlockWeights& block) : weights_(block) {}
  // Copies `block`, whose tensors may be its own already, and keeps it alive.
  explicit OwnBlock(std::shared_ptr<const BlockWeights> block);
  // Copies the tensors that `stage` runs with.
  OwnBlock(const Weights& weights, const BlockStage& stage);

  const BlockWeights& weights() const { return weights_; }
  // Replaces a tensor by `values`, in the tensor's type and shape. Throws Error for a value that is not finite in that
  // type.
  void Replace(TensorView BlockWeights::*member, std::span<const float> values);
  void Replace(TensorView BlockWeights::*member, std::span<const double> values);
  // Puts `tensor` there, which `storage` keeps alive.
  void Replace(TensorView BlockWeights::*member, const TensorView& tensor, std::shared_ptr<const void> storage);

  // The tensors of `block` as a pointer that keeps the block alive.
  static std::shared_ptr<const BlockWeights> Share(std::shared_ptr<const OwnBlock> block);

 private:
  BlockWeights weights_;
  std::vector<std::shared_ptr<const void>> storage_;
};

// A copy of the final norm and the head, some of them its own in place of the model's.
class OwnOutput {
 public:
  // Copies the final norm and head that `plan` runs with.
  OwnOutput(const Weights& weights, const DepthPlan& plan);

  const OutputWeights& weights() const { return weights_; }
  // As OwnBlock::Replace.
  void Replace(TensorView OutputWeights::*member, std::span<const float> values);
  // Puts `tensor` there, which `storage` keeps alive.
  void Replace(TensorView OutputWeights::*member, const TensorView& tensor, std::shared_ptr<const void> storage);

  // The tensors of `output` as a pointer that keeps it alive.
  static std::shared_ptr<const OutputWeights> Share(std::shared_ptr<const OwnOutput> output);

 private:
  OutputWeights weights_;
  std::vector<std::shared_ptr<const void>> storage_;
};

}  // namespace shiftrt
