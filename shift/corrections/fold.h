// SPDX-License-Identifier: Apache-2.0
// Corrections that change a kept block's own weights, so that the architecture stays stock.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "models/weights.h"
#include "runtime/context.h"
#include "shift/sums/sites.h"

namespace shiftrt {

// A copy of a block with some tensors of its own in place of the model's.
class FoldedBlock {
 public:
  explicit FoldedBlock(const BlockWeights& block) : weights_(block) {}
  // Of a block whose tensors may be its own: it is kept alive.
  explicit FoldedBlock(std::shared_ptr<const BlockWeights> block) : weights_(*block), of_(std::move(block)) {}
  // Stores `values` in the type and shape that the tensor has. Throws Error for a value that the type cannot hold.
  void Replace(TensorView BlockWeights::*member, const Matrix<double>& values);
  // The tensors of `block`, which they keep alive.
  static std::shared_ptr<const BlockWeights> Weights(std::shared_ptr<FoldedBlock> block);

 private:
  BlockWeights weights_;
  std::shared_ptr<const BlockWeights> of_;
  std::deque<Buffer<std::byte>> storage_;
};

// The values of a float tensor (rows, cols).
Matrix<double> Widened(const TensorView& tensor);

// Throws UsageError where no kept block stands before a site. `runs`: ascending.
void CheckBlockBefore(const std::vector<Site>& runs);

// Throws UsageError for a family that norms what a half adds before it is added: no change of the projection before
// that norm stands for a map behind it.
void CheckFoldsIntoProjections(const ModelConfig& config);

// `block` with T (hidden, hidden) behind its MLP: the output m becomes m T (row vectors). Stored in the types it had.
std::shared_ptr<const BlockWeights> FoldIntoDown(const Context& context, const BlockWeights& block,
                                                 MatrixView<const double> t);

}  // namespace shiftrt
