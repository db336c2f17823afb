// SPDX-License-Identifier: Apache-2.0
#include "kernels/rmsnorm.h"

#include <algorithm>
#include <cmath>

#include "kernels/matmul.h"
#include "kernels/widen.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kChunkRows = 32;  // rows per partial sum of a gradient of the weights

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

// With r = 1 / sqrt(mean(x^2) + eps): dx = r w dy - r^3 x mean(w dy x), and dw = r x dy. dx may be dy. The sums of both
// means are in float64, as in NormRow.
template <bool kAccumulate, bool kWeights>
void NormRowGradient(const float* x, const float* weight, const float* dy, int64_t n, float eps, float* dx,
                     float* dweight) {
  double squares = 0, products = 0;
#pragma omp simd reduction(+ : squares, products)
  for (int64_t i = 0; i < n; ++i) {
    squares += static_cast<double>(x[i]) * x[i];
    products += static_cast<double>(weight[i] * dy[i]) * x[i];
  }
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + eps);
  const auto r = static_cast<float>(scale);
  const auto pull = static_cast<float>(scale * scale * scale * products / static_cast<double>(n));
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = r * (weight[i] * dy[i]) - pull * x[i];
    if constexpr (kWeights) dweight[i] += r * x[i] * dy[i];
    dx[i] = kAccumulate ? dx[i] + gradient : gradient;
  }
}

// The gradients of norms of heads with `dim` columns each.
void NormGradients(const Context& context, const NormGradient& norm, int64_t dim, MatrixView<const float> dy,
                   bool accumulate, MatrixView<float> dx, MatrixView<float> dweight) {
  const MatrixView<const float>& x = norm.x;
  Check(dim > 0 && x.cols % dim == 0 && norm.weight.elements() == dim && dy.rows == x.rows && dy.cols == x.cols &&
            dx.rows == x.rows && dx.cols == x.cols &&
            (dweight.data == nullptr || (dweight.rows == 1 && dweight.cols == dim)),
        "gradient of a norm over {} of {} columns with {} weights from dy ({}, {}) into ({}, {}) and ({}, {}) does not "
        "fit",
        dim, x.cols, norm.weight.elements(), dy.rows, dy.cols, dx.rows, dx.cols, dweight.rows, dweight.cols);
  const std::vector<float> wide = WithOffset(norm.weight, norm.offset);
  const bool weights = dweight.data != nullptr;
  const auto row_gradient = weights ? (accumulate ? NormRowGradient<true, true> : NormRowGradient<false, true>)
                                    : (accumulate ? NormRowGradient<true, false> : NormRowGradient<false, false>);
  const int64_t chunks = (x.rows + kChunkRows - 1) / kChunkRows;
  const Matrix<float> partial = Matrix<float>::Zeros(weights ? chunks : 0, dim);
  ParallelFor(context, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kChunkRows; i < std::min(x.rows, end * kChunkRows); ++i)
      for (int64_t at = 0; at < x.cols; at += dim)
        row_gradient(x.row(i) + at, wide.data(), dy.row(i) + at, dim, norm.eps, dx.row(i) + at,
                     weights ? partial.row(i / kChunkRows) : nullptr);
  });
  if (weights) BiasGradient(context, partial.view(), dweight);
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

void RmsNormGradient(const Context& context, const NormGradient& norm, MatrixView<const float> dy, bool accumulate,
                     MatrixView<float> dx, MatrixView<float> dweight) {
  NormGradients(context, norm, norm.x.cols, dy, accumulate, dx, dweight);
}

void RmsNormHeadsGradient(const Context& context, const NormGradient& norm, int64_t head_dim,
                          MatrixView<const float> dy, MatrixView<float> dx, MatrixView<float> dweight) {
  NormGradients(context, norm, head_dim, dy, false, dx, dweight);
}

}  // namespace shiftrt
