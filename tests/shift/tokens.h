// SPDX-License-Identifier: Apache-2.0
// Tokens that tests/goldens/make_shift.py makes too, number for number, and small matrix helpers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "runtime/linalg/linalg.h"
#include "runtime/random.h"
#include "shift/sums/moments.h"

namespace shiftrt::test {

constexpr int64_t kHidden = 12;

struct Tokens {
  Matrix<float> h, delta;
};

inline Tokens MakeTokens(int64_t count, bool massive, uint64_t seed) {
  Random random(seed);
  Tokens tokens{Matrix<float>(count, kHidden), Matrix<float>(count, kHidden)};
  for (int64_t i = 0; i < count; ++i) {
    double u[kHidden];
    for (double& x : u) x = 2 * random.Uniform() - 1;
    for (int64_t j = 0; j < kHidden; ++j) {
      tokens.h(i, j) = static_cast<float>(u[j] + (j == 7 ? 3.0 : 0.0));
      tokens.delta(i, j) = static_cast<float>(0.3 * u[(j + 3) % kHidden] + 0.2 * u[j] * u[(j + 1) % kHidden] + 0.1 +
                                              0.2 * (random.Uniform() - 0.5));
    }
    if (massive) {
      tokens.h(i, 3) = static_cast<float>(1000.0 + 100.0 * u[3]);
      tokens.delta(i, 3) *= 100.0f;
    }
  }
  return tokens;
}

inline RidgeSums Accumulated(const Tokens& tokens, std::span<const double> weights = {}) {
  RidgeSums sums(tokens.h.cols());
  sums.Add(Context(), tokens.h.view(), tokens.delta.view(), weights);
  return sums;
}

// 1 / |h + delta|^2 of each token.
inline std::vector<double> RelativeWeights(const Tokens& tokens) {
  std::vector<double> weights(tokens.h.rows());
  for (int64_t i = 0; i < tokens.h.rows(); ++i) {
    double squares = 0;
    for (int64_t j = 0; j < tokens.h.cols(); ++j) {
      const double out = static_cast<double>(tokens.h(i, j)) + tokens.delta(i, j);
      squares += out * out;
    }
    weights[i] = 1 / squares;
  }
  return weights;
}

// About the tokens' means; both triangles of the Gram.
struct CenteredMoments {
  Matrix<double> gram, cross;
};
inline CenteredMoments Centered(const RidgeSums& sums) {
  const auto solver = linalg::MakeHostSolver(Context());
  CenteredMoments moments{solver->Downloaded(*CenteredGram(*solver, sums)),
                          solver->Downloaded(*CenteredCross(*solver, sums))};
  linalg::SymmetrizeFromUpper(moments.gram.view());
  return moments;
}

inline Matrix<double> Product(const Matrix<double>& a, const Matrix<double>& b) {
  Matrix<double> c = Matrix<double>::Zeros(a.rows(), b.cols());
  for (int64_t i = 0; i < a.rows(); ++i)
    for (int64_t k = 0; k < a.cols(); ++k)
      for (int64_t j = 0; j < b.cols(); ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

inline double FrobeniusNorm(std::span<const double> x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

// |x - expected| / |expected|, Frobenius.
inline double RelativeError(std::span<const double> x, std::span<const double> expected) {
  if (x.size() != expected.size()) return std::numeric_limits<double>::infinity();
  std::vector<double> difference(x.begin(), x.end());
  for (size_t i = 0; i < x.size(); ++i) difference[i] -= expected[i];
  return FrobeniusNorm(difference) / FrobeniusNorm(expected);
}

// Sum of squares left on the tokens themselves, times the tokens' weights if there are some.
inline double Residual(const Tokens& tokens, const Matrix<double>& a, const Matrix<double>& b,
                       std::span<const double> weights = {}) {
  double sum = 0;
  for (int64_t i = 0; i < tokens.h.rows(); ++i) {
    for (int64_t j = 0; j < a.cols(); ++j) {
      double left = tokens.delta(i, j) - b(0, j);
      for (int64_t k = 0; k < a.rows(); ++k) left -= tokens.h(i, k) * a(k, j);
      sum += left * left * (weights.empty() ? 1.0 : weights[i]);
    }
  }
  return sum;
}

}  // namespace shiftrt::test
