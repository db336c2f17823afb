// SPDX-License-Identifier: Apache-2.0
#include "kernels/rmsnorm.h"

#include <cmath>

#include "kernels/widen.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

void NormRow(const float* x, const float* weight, int64_t n, float eps, float* out) {
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const auto scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + eps));
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

std::vector<float> WithOffset(const TensorView& weight, float offset) {
  std::vector<float> wide = Widened(weight);
  if (offset != 0)
    for (float& w : wide) w += offset;
  return wide;
}

}  // namespace

void RmsNorm(const Context& context, MatrixView<const float> x, const TensorView& weight, float eps,
             MatrixView<float> out, float offset) {
  Check(weight.elements() == x.cols && out.rows == x.rows && out.cols == x.cols,
        "norm of ({}, {}) with {} weights into ({}, {}) does not fit", x.rows, x.cols, weight.elements(), out.rows,
        out.cols);
  const std::vector<float> wide = WithOffset(weight, offset);
  ParallelFor(context, x.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) NormRow(x.row(i), wide.data(), x.cols, eps, out.row(i));
  });
}

void RmsNormHeads(const Context& context, MatrixView<float> x, int64_t head_dim, const TensorView& weight, float eps,
                  float offset) {
  Check(weight.elements() == head_dim && head_dim > 0 && x.cols % head_dim == 0,
        "norm of heads of {} with {} weights over {} columns does not fit", head_dim, weight.elements(), x.cols);
  const std::vector<float> wide = WithOffset(weight, offset);
  ParallelFor(context, x.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (float* head = x.row(i); head < x.row(i) + x.cols; head += head_dim)
        NormRow(head, wide.data(), head_dim, eps, head);
  });
}

}  // namespace shiftrt
