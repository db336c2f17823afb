// SPDX-License-Identifier: Apache-2.0
#include "kernels/gram.h"

#include <algorithm>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// The number of rows that are widened to float64 at a time: enough for the products to run at full speed, and small
// compared with the sums.
constexpr int64_t kChunkRows = 512;

// out(:, 0 .. cols) = rows of `in` as float64, times the square roots of `weights` if there are any.
void Widen(const Context& context, MatrixView<const float> in, std::span<const double> roots, MatrixView<double> out) {
  ParallelFor(context, in.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double scale = roots.empty() ? 1.0 : roots[i];
      for (int64_t j = 0; j < in.cols; ++j) out(i, j) = scale * in(i, j);
    }
  });
}

}  // namespace

void ComputeRowProducts(const Context& context, MatrixView<const float> a, MatrixView<const float> b,
                        std::span<RowProducts> products) {
  Check(a.rows == b.rows && a.cols == b.cols && a.rows == std::ssize(products),
        "products of rows of ({}, {}) and ({}, {}) into {}", a.rows, a.cols, b.rows, b.cols, products.size());
  ParallelFor(context, a.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      RowProducts row;
      for (int64_t j = 0; j < a.cols; ++j) {
        const double x = a(t, j), y = b(t, j);
        row.dot += x * y;
        row.aa += x * x;
        row.bb += y * y;
      }
      products[t] = row;
    }
  });
}

void AddToRidgeSums(const Context& context, MatrixView<const float> h, MatrixView<const float> delta,
                    std::span<const double> weights, const RidgeSumsView& sums) {
  const int64_t n = h.cols, d = delta.cols;
  Check(delta.rows == h.rows && sums.gram.rows == n + 1 && sums.cross.rows == n + 1 && sums.cross.cols == d,
        "inputs ({}, {}) and updates ({}, {}) for sums of {} inputs and {} outputs", h.rows, n, delta.rows, d,
        sums.gram.rows - 1, sums.cross.cols);
  Check(weights.empty() || std::ssize(weights) == h.rows, "{} weights for {} rows", weights.size(), h.rows);
  std::vector<double> roots;
  for (const double weight : weights) {
    Check(std::isfinite(weight) && weight >= 0, "a row's weight of {}", weight);
    roots.push_back(std::sqrt(weight));
  }
  const int64_t chunk = std::min(kChunkRows, h.rows);
  const Matrix<double> inputs(chunk, n + 1), updates(chunk, d);
  for (int64_t first = 0; first < h.rows; first += chunk) {
    const int64_t rows = std::min(chunk, h.rows - first);
    const MatrixView<double> x = inputs.view().Rows(0, rows), y = updates.view().Rows(0, rows);
    const std::span<const double> scales = roots.empty() ? roots : std::span<const double>(roots).subspan(first, rows);
    Widen(context, h.Rows(first, rows), scales, x);
    for (int64_t i = 0; i < rows; ++i) x(i, n) = scales.empty() ? 1.0 : scales[i];
    Widen(context, delta.Rows(first, rows), scales, y);
    linalg::AddGram(context, x, sums.gram);
    linalg::Gemm(context, true, false, 1.0, x, y, 1.0, sums.cross);
  }
}

}  // namespace shiftrt
