// SPDX-License-Identifier: Apache-2.0
// Linear residual adapters (paper eq. low_rank_adapter, final_adapter_application), row-vector convention.
#pragma once

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// h (tokens, d) += (h P) Q + b; P (d, r), Q (r, d), b (1, d), float32. Cost: 4 d r FLOP per token; reads 2 d r + d
// values.
void ApplyLowRankLra(const Context& context, MatrixView<const float> p, MatrixView<const float> q,
                     MatrixView<const float> b, MatrixView<float> h);
// h += h A + b; A (d, d).
void ApplyFullLra(const Context& context, MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> h);

}  // namespace shiftrt
