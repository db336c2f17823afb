// SPDX-License-Identifier: Apache-2.0
#include "kernels/xielu.h"

#include <cmath>
#include <vector>

#include "kernels/row_parts.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

double SoftplusOf(float x) { return x > 20 ? static_cast<double>(x) : std::log1p(std::exp(static_cast<double>(x))); }
double SlopeOfSoftplus(float x) { return 1 / (1 + std::exp(-static_cast<double>(x))); }

// The factors of f.
struct Factors {
  explicit Factors(const XieluNumbers& of)
      : positive(static_cast<float>(SoftplusOf(of.alpha_p))),
        negative(static_cast<float>(of.beta + SoftplusOf(of.alpha_n))),
        beta(of.beta),
        eps(of.eps) {}
  // expm1(min(x, eps)) - x, which is a NaN where x is.
  float Below(float x) const { return std::expm1(x > eps ? eps : x) - x; }
  float Of(float x) const { return x > 0 ? (positive * x + beta) * x : negative * Below(x) + beta * x; }
  float Slope(float x) const {
    if (x > 0) return 2 * positive * x + beta;
    return (x > eps ? -negative : negative * std::expm1(x)) + beta;
  }

  float positive, negative, beta, eps;
};

}  // namespace

void Xielu(const Context& context, const XieluNumbers& numbers, MatrixView<float> x) {
  const Factors factors(numbers);
  ForEachRowPart(context, x, [&](int64_t row, int64_t col, int64_t count) {
    for (float& value : std::span(x.row(row) + col, static_cast<size_t>(count))) value = factors.Of(value);
  });
}

XieluNumberGradients XieluGradient(const Context& context, const XieluNumbers& numbers, MatrixView<const float> x,
                                   MatrixView<float> dx) {
  Check(x.rows == dx.rows && x.cols == dx.cols, "gradient of xIELU of ({}, {}) and ({}, {}) does not fit", x.rows,
        x.cols, dx.rows, dx.cols);
  const Factors factors(numbers);
  std::vector<XieluNumberGradients> of_rows(x.rows);
  ParallelFor(context, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      XieluNumberGradients& sum = of_rows[row];
      for (int64_t i = 0; i < x.cols; ++i) {
        const float value = x(row, i), dy = dx(row, i);
        (value > 0 ? sum.alpha_p : sum.alpha_n) +=
            static_cast<double>(dy) * static_cast<double>(value > 0 ? value * value : factors.Below(value));
        dx(row, i) = dy * factors.Slope(value);
      }
    }
  });
  XieluNumberGradients sums;
  for (const XieluNumberGradients& of_row : of_rows) {
    sums.alpha_p += of_row.alpha_p;
    sums.alpha_n += of_row.alpha_n;
  }
  sums.alpha_p *= SlopeOfSoftplus(numbers.alpha_p);
  sums.alpha_n *= SlopeOfSoftplus(numbers.alpha_n);
  return sums;
}

}  // namespace shiftrt
