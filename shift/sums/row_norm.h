// SPDX-License-Identifier: Apache-2.0
// The norm of rows of the stream, where a decoder has them: the input of an adapter with a norm (Lra::norm), and of the
// first matrices of a half.
#pragma once

#include <memory>

#include "engine/ops.h"

namespace shiftrt {

// The weight with which the norm of the model has a gain of 1.
Matrix<float> NormOfGainOne(const ModelConfig& config);

class RowNorm {
 public:
  RowNorm(const Context& context, std::shared_ptr<const Weights> weights);
  // The norm of each row, with a gain of 1, or with the operands of a block's or the last norm. Valid until the next
  // call.
  Rows Of(const Rows& stream) { return Of(stream, {view_}); }
  Rows Of(const Rows& stream, const NormOperands& norm);

 private:
  const Context context_;
  const std::shared_ptr<const Weights> weights_;
  const Matrix<float> weight_;
  const TensorView view_;     // the weight
  std::unique_ptr<Ops> ops_;  // those of the device that had the first rows
  DeviceMemory copy_, normed_;
};

}  // namespace shiftrt
