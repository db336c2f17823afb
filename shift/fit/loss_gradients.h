// SPDX-License-Identifier: Apache-2.0
// The gradients of the loss with respect to the stream behind some blocks, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "runtime/tensor.h"
#include "shift/job.h"
#include "shift/sums/token_weights.h"

namespace shiftrt {

// g (tokens, d), the gradient of the batch's mean cross entropy behind `layer`, for the duration of the call.
using GradientSink = std::function<void(int64_t layer, const Batch& batch, const Matrix<float>& g)>;

// A pass forwards and backwards of the original model over `batches`, which hears `layers` from the last to the first.
// Nothing below the first of them runs backwards.
void VisitLossGradients(const ShiftJob& job, std::span<const Batch> batches, std::span<const int64_t> layers,
                        const GradientSink& sink);

// Collects the sizes of the gradients of every token of the calibration text, fitted and held out. They take 4 bytes
// per token and layer.
GradientSizes CollectGradientSizes(const ShiftJob& job, std::span<const int64_t> layers);

}  // namespace shiftrt
