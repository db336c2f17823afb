// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (Su et al. 2021) in the half-split layout of Hugging Face checkpoints:
// element i < head_dim/2 is paired with i + head_dim/2.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// The rotations of a batch, computed once for the queries and keys of all layers: cosine and sine of
// positions[t] * inverse_frequency[i], both (tokens, head_dim / 2), times `scale` (the attention factor of yarn,
// otherwise 1). Angles are float64, so the values are exact to float32 rounding at any position.
struct RopeAngles {
  Matrix<float> cosine, sine;
};
RopeAngles MakeRopeAngles(const Context& context, std::span<const int64_t> positions,
                          std::span<const float> inverse_frequency, float scale);

// Rotates x (tokens, heads * head_dim) in place.
void Rope(const Context& context, MatrixView<float> x, int64_t head_dim, const RopeAngles& angles);

// The gradient of Rope, in place: rotates dx back by the angles, and scales it in the same way.
void RopeGradient(const Context& context, MatrixView<float> dx, int64_t head_dim, const RopeAngles& angles);

}  // namespace shiftrt
