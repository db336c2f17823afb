// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (Su et al. 2021).
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// Which elements of a head are rotated together, as pairs i = 0 .. head_dim / 2 - 1. The first rotary_dim elements are
// rotated: i is paired with i + rotary_dim / 2 (the half-split layout of most Hugging Face checkpoints) or,
// interleaved, 2 i with 2 i + 1. The elements after them are not rotated; their pairs have frequencies of 0.
struct RopeLayout {
  int64_t head_dim = 0;    // even
  int64_t rotary_dim = 0;  // even, 2 to head_dim
  bool interleaved = false;

  RopeLayout(int64_t head_dim) : head_dim(head_dim), rotary_dim(head_dim) {}  // NOLINT(google-explicit-constructor)
  RopeLayout(int64_t head_dim, int64_t rotary_dim, bool interleaved)
      : head_dim(head_dim), rotary_dim(rotary_dim), interleaved(interleaved) {}
};

// The rotations of a batch, computed once for the queries and keys of all layers: cosine and sine of
// positions[t] * inverse_frequency[i], both (tokens, head_dim / 2), times `scale` (the attention factor of yarn and
// longrope, otherwise 1), unless the frequency is 0. Angles are float64, so the values are exact to float32 rounding at
// any position.
struct RopeAngles {
  Matrix<float> cosine, sine;
};
RopeAngles MakeRopeAngles(const Context& context, std::span<const int64_t> positions,
                          std::span<const float> inverse_frequency, float scale);

// Rotates x (tokens, heads * head_dim) in place, and multiplies the rows by `row_scales` (tokens) unless that is empty.
void Rope(const Context& context, MatrixView<float> x, const RopeLayout& layout, const RopeAngles& angles,
          std::span<const float> row_scales = {});

// The gradient of Rope, in place: rotates dx back by the angles, and scales it in the same way.
void RopeGradient(const Context& context, MatrixView<float> dx, const RopeLayout& layout, const RopeAngles& angles,
                  std::span<const float> row_scales = {});

}  // namespace shiftrt
