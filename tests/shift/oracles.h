// SPDX-License-Identifier: Apache-2.0
// Ridge regressions from the tokens themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tests/shift/tokens.h"

namespace shiftrt::test {

inline Matrix<float> Minus(const Matrix<float>& a, const Matrix<float>& b) {
  Matrix<float> out(a.rows(), a.cols());
  for (int64_t i = 0; i < out.size(); ++i) out.data()[i] = a.data()[i] - b.data()[i];
  return out;
}

inline Matrix<double> Widen(const Matrix<float>& m) {
  Matrix<double> out(m.rows(), m.cols());
  std::copy(m.span().begin(), m.span().end(), out.data());
  return out;
}

// [left right].
inline Matrix<float> Concatenated(const Matrix<float>& left, const Matrix<float>& right) {
  Matrix<float> out(left.rows(), left.cols() + right.cols());
  for (int64_t t = 0; t < left.rows(); ++t)
    std::copy_n(right.row(t), right.cols(), std::copy_n(left.row(t), left.cols(), out.row(t)));
  return out;
}

// The RMSNorm of each row of the small model, with a gain of 1.
inline Matrix<float> Normed(const Matrix<float>& h) {
  constexpr double kEps = 1e-6;
  Matrix<float> out(h.rows(), h.cols());
  for (int64_t t = 0; t < h.rows(); ++t) {
    double squares = 0;
    for (int64_t j = 0; j < h.cols(); ++j) squares += static_cast<double>(h(t, j)) * h(t, j);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(h.cols()) + kEps);
    for (int64_t j = 0; j < h.cols(); ++j) out(t, j) = static_cast<float>(scale * h(t, j));
  }
  return out;
}

inline std::vector<double> Doubles(std::span<const float> x) { return {x.begin(), x.end()}; }

// The minimiser of |x t - y|^2 + lambda |t|^2, by Gaussian elimination.
inline Matrix<double> LeastSquares(const Matrix<double>& x, const Matrix<double>& y, double lambda) {
  const int64_t n = x.cols(), outputs = y.cols();
  Matrix<double> system = Matrix<double>::Zeros(n, n + outputs);
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) system(i, j) += x(t, i) * x(t, j);
      for (int64_t j = 0; j < outputs; ++j) system(i, n + j) += x(t, i) * y(t, j);
    }
  for (int64_t i = 0; i < n; ++i) system(i, i) += lambda;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = system(k, i) / system(i, i);
      for (int64_t j = i; j < n + outputs; ++j) system(k, j) -= factor * system(i, j);
    }
  }
  Matrix<double> t(n, outputs);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < outputs; ++j) t(i, j) = system(i, n + j) / system(i, i);
  return t;
}

struct AffineMap {
  Matrix<double> a, b;
};

// Ridge with a free bias from the tokens themselves, in their weights.
inline AffineMap WeightedRidge(const Matrix<float>& h, const Matrix<float>& target, const std::vector<double>& weights,
                               double lambda) {
  double total = 0;
  for (const double weight : weights) total += weight;
  const auto mean_of = [&](const Matrix<float>& m) {
    Matrix<double> mean = Matrix<double>::Zeros(1, m.cols());
    for (int64_t t = 0; t < m.rows(); ++t)
      for (int64_t j = 0; j < m.cols(); ++j) mean(0, j) += weights[t] * m(t, j) / total;
    return mean;
  };
  const auto centred = [&](const Matrix<float>& m, const Matrix<double>& mean) {
    Matrix<double> out(m.rows(), m.cols());
    for (int64_t t = 0; t < m.rows(); ++t)
      for (int64_t j = 0; j < m.cols(); ++j) out(t, j) = std::sqrt(weights[t]) * (m(t, j) - mean(0, j));
    return out;
  };
  const Matrix<double> mean_h = mean_of(h), mean_y = mean_of(target);
  AffineMap map{LeastSquares(centred(h, mean_h), centred(target, mean_y), lambda), mean_y.Clone()};
  const Matrix<double> shift = Product(mean_h, map.a);
  for (int64_t j = 0; j < mean_y.cols(); ++j) map.b(0, j) -= shift(0, j);
  return map;
}

}  // namespace shiftrt::test
