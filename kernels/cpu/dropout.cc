// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

void ApplyDropout(const Context& context, const Dropout& dropout, MatrixView<const float> x, MatrixView<float> out) {
  Check(x.rows == out.rows && x.cols == out.cols, "dropout of ({}, {}) into ({}, {}) does not fit", x.rows, x.cols,
        out.rows, out.cols);
  Check(dropout.probability >= 0 && dropout.probability < 1, "a dropout of {} is not in [0, 1)", dropout.probability);
  const uint32_t threshold = dropout.Threshold();
  const float scale = dropout.Scale();
  ParallelFor(context, x.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < x.cols; ++j) {
        const auto index = static_cast<uint64_t>(i * x.cols + j);
        out(i, j) = Dropout::Bits(dropout.key, index) < threshold ? 0.0f : x(i, j) * scale;
      }
  });
}

}  // namespace shiftrt
