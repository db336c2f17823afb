#include "kernels/rope.h"

#include <cmath>
#include <vector>

#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

void Rope(const Context& context, MatrixView<float> x, int64_t head_dim, std::span<const int64_t> positions,
          std::span<const float> inverse_frequency, float scale) {
  const int64_t half = head_dim / 2;
  Check(static_cast<int64_t>(positions.size()) == x.rows && x.cols % head_dim == 0 &&
            static_cast<int64_t>(inverse_frequency.size()) == half,
        "rotation of ({}, {}) in heads of {} with {} positions and {} frequencies does not fit", x.rows, x.cols,
        head_dim, positions.size(), inverse_frequency.size());
  ParallelFor(context, x.rows, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> cosine(half), sine(half);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[t]) * static_cast<double>(inverse_frequency[i]);
        cosine[i] = static_cast<float>(std::cos(angle)) * scale;
        sine[i] = static_cast<float>(std::sin(angle)) * scale;
      }
      for (float* head = x.row(t); head < x.row(t) + x.cols; head += head_dim) {
        for (int64_t i = 0; i < half; ++i) {
          const float a = head[i], b = head[i + half];
          head[i] = a * cosine[i] - b * sine[i];
          head[i + half] = b * cosine[i] + a * sine[i];
        }
      }
    }
  });
}

}  // namespace shiftrt
