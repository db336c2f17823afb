// SPDX-License-Identifier: Apache-2.0
// Tensors that a plan has in place of the model's, made of computed values: BlockStage::own and DepthPlan::output.
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
  // Of a block whose tensors may be its own: it is kept alive.
  explicit OwnBlock(std::shared_ptr<const BlockWeights> block);
  // The tensors that `stage` runs with.
  OwnBlock(const Weights& weights, const BlockStage& stage);

  const BlockWeights& weights() const { return weights_; }
  // Stores `values` in the type and shape that the tensor has. Throws Error for a value that is not finite there.
  void Replace(TensorView BlockWeights::*member, std::span<const float> values);
  void Replace(TensorView BlockWeights::*member, std::span<const double> values);
  // Puts `tensor` there, which `storage` keeps alive.
  void Replace(TensorView BlockWeights::*member, const TensorView& tensor, std::shared_ptr<const void> storage);

  // The tensors of `block`, which they keep alive.
  static std::shared_ptr<const BlockWeights> Share(std::shared_ptr<const OwnBlock> block);

 private:
  BlockWeights weights_;
  std::vector<std::shared_ptr<const void>> storage_;
};

// The same for final norm and head.
class OwnOutput {
 public:
  // Those that `plan` runs with.
  OwnOutput(const Weights& weights, const DepthPlan& plan);

  const OutputWeights& weights() const { return weights_; }
  // As OwnBlock::Replace.
  void Replace(TensorView OutputWeights::*member, std::span<const float> values);
  // Puts `tensor` there, which `storage` keeps alive.
  void Replace(TensorView OutputWeights::*member, const TensorView& tensor, std::shared_ptr<const void> storage);

  // The tensors of `output`, which they keep alive.
  static std::shared_ptr<const OutputWeights> Share(std::shared_ptr<const OwnOutput> output);

 private:
  OutputWeights weights_;
  std::vector<std::shared_ptr<const void>> storage_;
};

}  // namespace shiftrt
