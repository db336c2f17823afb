// Rotary position embedding (Su et al. 2021) in the half-split layout of Hugging Face checkpoints:
// element i < head_dim/2 is paired with i + head_dim/2.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// In place on x (tokens, heads * head_dim): token t is rotated by positions[t] * inverse_frequency[i], cos and sin
// multiplied by `scale` (yarn's attention factor; 1 otherwise). inverse_frequency (head_dim / 2). The angle is computed
// in float64 and is exact to float32 rounding at any position.
void Rope(const Context& context, MatrixView<float> x, int64_t head_dim, std::span<const int64_t> positions,
          std::span<const float> inverse_frequency, float scale);

}  // namespace shiftrt
