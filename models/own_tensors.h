// SPDX-License-Identifier: Apache-2.0
// Tensors with computed values that a plan uses in place of the model's (BlockStage::own, DepthPlan::output).
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/plan.h"
#include "models/weights.h"

namespace shiftrt {

// A copy of the tensors of a block (BlockWeights), or of the final norm and the head (OutputWeights), with some of its
// own in place of the model's.
template <typename Tensors>
class OwnCopy {
 public:
  const Tensors& weights() const { return weights_; }
  // Replaces a tensor by `values`, in the tensor's type, or bfloat16 if that is quantised, and its shape. Throws Error
  // for a value that is not finite in that type.
  void Replace(TensorView Tensors::*member, std::span<const float> values);
  void Replace(TensorView Tensors::*member, std::span<const double> values);
  // Replaces a tensor by `values` of another shape.
  void Replace(TensorView Tensors::*member, std::span<const float> values, const std::vector<int64_t>& shape);
  // Puts `tensor` there, which `storage` keeps alive.
  void Replace(TensorView Tensors::*member, const TensorView& tensor, std::shared_ptr<const void> storage) {
    weights_.*member = tensor;
    storage_.push_back(std::move(storage));
  }

  // The tensors of `own` as a pointer that keeps it alive.
  static std::shared_ptr<const Tensors> Share(std::shared_ptr<const OwnCopy> own) {
    const Tensors* const weights = &own->weights_;
    return {std::move(own), weights};
  }

 protected:
  // `storage` keeps the tensors alive that are not the model's; or it is null.
  explicit OwnCopy(const Tensors& tensors, std::shared_ptr<const void> storage = nullptr)
      : weights_(tensors), storage_{std::move(storage)} {}

 private:
  friend class OwnBlock;
  Tensors weights_;
  std::vector<std::shared_ptr<const void>> storage_;
};

// Measures which share of a change is lost where the new values are rounded to the types of the tensors.
class RoundingError {
 public:
  // `before` was to become `exact` and became `after`, which has as many elements.
  void Add(std::span<const float> exact, const TensorView& before, const TensorView& after);
  // |after - exact| / |exact - before| over all tensors, in the Frobenius norm; 0 if nothing changed.
  double share() const;

 private:
  double lost_ = 0, change_ = 0;  // sums of squares
};

struct BlockTensor;

class OwnBlock : public OwnCopy<BlockWeights> {
 public:
  using OwnCopy::Replace;
  // Puts `tensor` in the place of this row's (models/block_tensors.h); `storage` keeps it alive.
  void Replace(const BlockTensor& row, const TensorView& tensor, std::shared_ptr<const void> storage);
  // Replaces it by `values`, as Replace() of a member does.
  void Replace(const BlockTensor& row, std::span<const double> values);
  explicit OwnBlock(const BlockWeights& block) : OwnCopy(block) {}
  // Copies `block`, whose tensors may be its own already, and keeps it alive.
  explicit OwnBlock(const std::shared_ptr<const BlockWeights>& block) : OwnCopy(*block, block) {}
  // Copies the tensors that `stage` runs with.
  OwnBlock(const Weights& weights, const BlockStage& stage) : OwnCopy(TensorsOf(weights, stage), stage.own) {}
};

class OwnOutput : public OwnCopy<OutputWeights> {
 public:
  // Copies the final norm and head that `plan` runs with.
  OwnOutput(const Weights& weights, const DepthPlan& plan) : OwnCopy(plan.Output(weights), plan.output) {}
};

}  // namespace shiftrt
