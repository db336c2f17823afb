// SPDX-License-Identifier: Apache-2.0
// The sizes of a causal convolution of each channel alone (kernels/gated_delta.h).
#pragma once

#include <cstdint>

namespace shiftrt {

struct ConvolutionShape {
  int64_t channels = 0;
  int64_t width = 0;  // the tokens that it reads for one
  bool silu = false;  // SiLU follows

  int64_t row_floats() const { return (width - 1) * channels; }  // the rows that it needs again
};

}  // namespace shiftrt
