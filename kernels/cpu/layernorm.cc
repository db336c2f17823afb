// SPDX-License-Identifier: Apache-2.0
#include "kernels/layernorm.h"

#include <algorithm>
#include <cmath>

#include "kernels/matmul.h"
#include "kernels/widen.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kChunkRows = 32;  // rows per partial sum of a gradient of the weights

std::vector<float> WithOffset(const TensorView& weight, float offset) {
  std::vector<float> wide = Widened(weight);
  for (float& w : wide) w += offset;
  return wide;
}

struct Moments {
  double mean, scale;  // scale: 1 / sqrt(variance + eps)
};

// The squares are those of the differences, which do not cancel if the mean is large.
Moments MomentsOf(const float* x, int64_t n, float eps) {
  double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / static_cast<double>(n);
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1.0 / std::sqrt(squares / static_cast<double>(n) + eps)};
}

// With u = (x - mean) r and g = w dy: dx = r (g - mean(g) - u mean(g u)), dw = u dy. dx may be dy.
void NormRowGradient(const float* x, const float* weight, const float* dy, int64_t n, float eps, bool accumulate,
                     float* dx, float* dweight) {
  const Moments moments = MomentsOf(x, n, eps);
  const double mean = moments.mean, scale = moments.scale;
  double sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
  for (int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(weight[i]) * dy[i];
    sum += g;
    products += g * (x[i] - mean);
  }
  const double all = static_cast<double>(n), along = products * scale * scale / all;
  for (int64_t i = 0; i < n; ++i) {
    const double centred = x[i] - mean;
    const double gradient = scale * (static_cast<double>(weight[i]) * dy[i] - sum / all - centred * along);
    if (dweight != nullptr) dweight[i] += static_cast<float>(centred * scale * dy[i]);
    dx[i] = static_cast<float>(accumulate ? dx[i] + gradient : gradient);
  }
}

}  // namespace

void LayerNorm(const Context& context, MatrixView<const float> x, const TensorView& weight, const TensorView& bias,
               float eps, MatrixView<float> out, float offset) {
  Check(weight.elements() == x.cols && (bias.empty() || bias.elements() == x.cols) && out.rows == x.rows &&
            out.cols == x.cols,
        "layer norm of ({}, {}) with {} weights and {} biases into ({}, {}) does not fit", x.rows, x.cols,
        weight.elements(), bias.empty() ? 0 : bias.elements(), out.rows, out.cols);
  const std::vector<float> wide = WithOffset(weight, offset),
                           added = bias.empty() ? std::vector<float>(x.cols, 0.0f) : Widened(bias);
  ParallelFor(context, x.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [mean, scale] = MomentsOf(x.row(i), x.cols, eps);
      const float *const from = x.row(i), *const w = wide.data(), *const b = added.data();
      float* const to = out.row(i);
      for (int64_t j = 0; j < x.cols; ++j) to[j] = static_cast<float>((from[j] - mean) * scale) * w[j] + b[j];
    }
  });
}

void LayerNormGradient(const Context& context, const NormGradient& norm, MatrixView<const float> dy, bool accumulate,
                       MatrixView<float> dx, MatrixView<float> dweight, MatrixView<float> dbias) {
  const MatrixView<const float>& x = norm.x;
  const int64_t n = x.cols;
  const auto fits = [&](const MatrixView<float>& row) {
    return row.data == nullptr || (row.rows == 1 && row.cols == n);
  };
  Check(norm.weight.elements() == n && dy.rows == x.rows && dy.cols == n && dx.rows == x.rows && dx.cols == n &&
            fits(dweight) && fits(dbias),
        "gradient of a layer norm of ({}, {}) with {} weights from dy ({}, {}) into ({}, {}), ({}, {}) and ({}, {}) "
        "does not fit",
        x.rows, n, norm.weight.elements(), dy.rows, dy.cols, dx.rows, dx.cols, dweight.rows, dweight.cols, dbias.rows,
        dbias.cols);
  if (dbias.data != nullptr) BiasGradient(context, dy, dbias);  // before dx, which may replace dy
  const std::vector<float> wide = WithOffset(norm.weight, norm.offset);
  const bool weights = dweight.data != nullptr;
  const int64_t chunks = (x.rows + kChunkRows - 1) / kChunkRows;
  const Matrix<float> partial = Matrix<float>::Zeros(weights ? chunks : 0, n);
  ParallelFor(context, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kChunkRows; i < std::min(x.rows, end * kChunkRows); ++i)
      NormRowGradient(x.row(i), wide.data(), dy.row(i), n, norm.eps, accumulate, dx.row(i),
                      weights ? partial.row(i / kChunkRows) : nullptr);
  });
  if (weights) BiasGradient(context, partial.view(), dweight);
}

}  // namespace shiftrt
