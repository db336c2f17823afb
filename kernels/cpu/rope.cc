// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <cmath>

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
        angles.cosine(t, i) = static_cast<float>(std::cos(angle)) * scale;
        angles.sine(t, i) = static_cast<float>(std::sin(angle)) * scale;
      }
    }
  });
  return angles;
}

namespace {

// Rotates by the angles times `direction`, which is 1 or -1.
void Rotate(const Context& context, MatrixView<float> x, int64_t head_dim, const RopeAngles& angles, float direction) {
  const int64_t half = head_dim / 2;
  Check(angles.cosine.rows() == x.rows && x.cols % head_dim == 0 && angles.cosine.cols() == half &&
            angles.sine.rows() == x.rows && angles.sine.cols() == half,
        "rotation of ({}, {}) in heads of {} by angles ({}, {}) does not fit", x.rows, x.cols, head_dim,
        angles.cosine.rows(), angles.cosine.cols());
  ParallelFor(context, x.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cosine = angles.cosine.row(t);
      const float* sine = angles.sine.row(t);
      for (float* head = x.row(t); head < x.row(t) + x.cols; head += head_dim) {
        for (int64_t i = 0; i < half; ++i) {
          const float a = head[i], b = head[i + half], s = direction * sine[i];
          head[i] = a * cosine[i] - b * s;
          head[i + half] = b * cosine[i] + a * s;
        }
      }
    }
  });
}

}  // namespace

void Rope(const Context& context, MatrixView<float> x, int64_t head_dim, const RopeAngles& angles) {
  Rotate(context, x, head_dim, angles, 1);
}

void RopeGradient(const Context& context, MatrixView<float> dx, int64_t head_dim, const RopeAngles& angles) {
  Rotate(context, dx, head_dim, angles, -1);
}

}  // namespace shiftrt
