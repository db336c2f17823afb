// SPDX-License-Identifier: Apache-2.0
// The sizes of a gated delta network (kernels/gated_delta.h).
#pragma once

#include <cstdint>

#include "runtime/convolution_shape.h"

namespace shiftrt {

struct GatedDeltaShape {
  int64_t key_heads = 0;
  int64_t value_heads = 0;             // each key head serves value_heads / key_heads consecutive ones
  int64_t key_dim = 0, value_dim = 0;  // a head's state is (key_dim, value_dim)
  int64_t conv_width = 0;              // the tokens that the convolution reads for one

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }  // the convolution reads queries, keys and values
  int64_t state_floats() const { return value_heads * key_dim * value_dim; }
  ConvolutionShape convolution() const { return {channels(), conv_width, /*silu=*/true}; }
  int64_t row_floats() const { return convolution().row_floats(); }
  int64_t sequence_floats() const { return state_floats() + row_floats(); }
  // A GPU takes so many tokens of a long sequence through the rule together, and keeps so much for each of them.
  static constexpr int kChunk = 64;
  int64_t chunk_floats() const { return value_heads * (key_dim + kChunk); }
};

}  // namespace shiftrt
