// SPDX-License-Identifier: Apache-2.0
// The norm of rows of the stream, where a decoder has them: what an adapter with a norm reads (Lra::norm).
#pragma once

#include <memory>

#include "engine/ops.h"

namespace shiftrt {

// The weight with which the norm of the model has a gain of 1.
Matrix<float> NormOfGainOne(const ModelConfig& config);

class RowNorm {
 public:
  RowNorm(const Context& context, std::shared_ptr<const Weights> weights);
  // The norm of each row, with a gain of 1. Valid until the next call.
  Rows Of(const Rows& stream);

 private:
  const Context context_;
  const std::shared_ptr<const Weights> weights_;
  const Matrix<float> weight_;
  const TensorView view_;     // the weight
  std::unique_ptr<Ops> ops_;  // those of the device that had the first rows
  DeviceMemory copy_, normed_;
};

}  // namespace shiftrt
