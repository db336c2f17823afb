// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <cmath>
#include <utility>

#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

RopeAngles MakeRopeAngles(const Context& context, std::span<const int64_t> positions,
                          std::span<const float> inverse_frequency, float scale) {
  const auto tokens = static_cast<int64_t>(positions.size()), half = static_cast<int64_t>(inverse_frequency.size());
  RopeAngles angles{Matrix<float>(tokens, half), Matrix<float>(tokens, half)};
  ParallelFor(context, tokens, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[t]) * static_cast<double>(inverse_frequency[i]);
        const float factor = inverse_frequency[i] == 0 ? 1 : scale;
        angles.cosine(t, i) = static_cast<float>(std::cos(angle)) * factor;
        angles.sine(t, i) = static_cast<float>(std::sin(angle)) * factor;
      }
    }
  });
  return angles;
}

namespace {

// Rotates by the angles times `direction`, which is 1 or -1.
void Rotate(const Context& context, MatrixView<float> x, const RopeLayout& layout, const RopeAngles& angles,
            std::span<const float> row_scales, float direction) {
  const int64_t half = layout.head_dim / 2, rotated = layout.rotary_dim / 2;
  Check(angles.cosine.rows() == x.rows && x.cols % layout.head_dim == 0 && angles.cosine.cols() == half &&
            angles.sine.rows() == x.rows && angles.sine.cols() == half,
        "rotation of ({}, {}) in heads of {} by angles ({}, {}) does not fit", x.rows, x.cols, layout.head_dim,
        angles.cosine.rows(), angles.cosine.cols());
  Check(rotated > 0 && rotated <= half && layout.rotary_dim % 2 == 0, "rotation of {} of {} elements of a head",
        layout.rotary_dim, layout.head_dim);
  Check(row_scales.empty() || std::ssize(row_scales) == x.rows, "{} scales for the rotation of {} rows",
        row_scales.size(), x.rows);
  const auto rotate_head = [&](float* head, const float* cosine, const float* sine, auto pair) {
    for (int64_t i = 0; i < rotated; ++i) {
      const auto [first, second] = pair(i);
      const float a = head[first], b = head[second], s = direction * sine[i];
      head[first] = a * cosine[i] - b * s;
      head[second] = b * cosine[i] + a * s;
    }
  };
  ParallelFor(context, x.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (float* head = x.row(t); head < x.row(t) + x.cols; head += layout.head_dim) {
        if (layout.interleaved) {
          rotate_head(head, angles.cosine.row(t), angles.sine.row(t),
                      [](int64_t i) { return std::pair(2 * i, 2 * i + 1); });
        } else {
          rotate_head(head, angles.cosine.row(t), angles.sine.row(t),
                      [rotated](int64_t i) { return std::pair(i, i + rotated); });
        }
      }
      if (!row_scales.empty())
        for (float* value = x.row(t); value < x.row(t) + x.cols; ++value) *value *= row_scales[t];
    }
  });
}

}  // namespace

void Rope(const Context& context, MatrixView<float> x, const RopeLayout& layout, const RopeAngles& angles,
          std::span<const float> row_scales) {
  Rotate(context, x, layout, angles, row_scales, 1);
}

void RopeGradient(const Context& context, MatrixView<float> dx, const RopeLayout& layout, const RopeAngles& angles,
                  std::span<const float> row_scales) {
  Rotate(context, dx, layout, angles, row_scales, -1);
}

}  // namespace shiftrt
