// SPDX-License-Identifier: Apache-2.0
// The choice of a token from its logits.
#pragma once

#include <cstdint>
#include <span>

namespace shiftrt {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy
  double top_p = 1;
  int64_t top_k = 0;  // 0: all
};

// One row of logits (vocab), and the choice that `uniform`, a draw from [0, 1), makes of it: tokens stand in the order
// of their logits, the lowest id first among equals; temperature, then top-k, then top-p. Greedy ignores the draw.
// Throws Error if a logit, the temperature or top_p is NaN.
int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double uniform);

// Throws that error.
[[noreturn]] void FailOfNaN();

}  // namespace shiftrt
