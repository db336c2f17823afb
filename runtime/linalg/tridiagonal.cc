// SPDX-License-Identifier: Apache-2.0
#include "runtime/linalg/tridiagonal.h"

#include <algorithm>

#include "runtime/check.h"
#include "runtime/linalg/lapack.h"

namespace shiftrt::linalg {

std::pair<double, double> ExtremeEigenvalues(const Tridiagonal& t) {
  const int n = lapack::ToInt(t.size());
  std::vector<double> found(n), work(4 * t.size());
  std::vector<int> blocks(n), splits(n), iwork(3 * t.size());
  const auto at = [&](int index) {
    const double unused = 0, tolerance = 0;  // as accurate as can be
    int count = 0, parts = 0, info = 0;
    dstebz_("I", "E", &n, &unused, &unused, &index, &index, &tolerance, t.diagonal.data(), t.off_diagonal.data(),
            &count, &parts, found.data(), blocks.data(), splits.data(), work.data(), iwork.data(), &info, 1, 1);
    Check(info == 0 && count == 1, "the eigenvalues of a {} x {} matrix did not converge", n, n);
    return found[0];
  };
  return {at(1), at(n)};
}

std::vector<double> Eigenvalues(const Tridiagonal& t) {
  const int n = lapack::ToInt(t.size());
  std::vector<double> values = t.diagonal, spent = t.off_diagonal;
  int info = 0;
  dsterf_(&n, values.data(), spent.data(), &info);
  Check(info == 0, "the eigenvalues of a {} x {} matrix did not converge", n, n);
  return values;
}

Bidiagonal Shrinkage(const Tridiagonal& t, double lambda) {
  Bidiagonal s{std::vector<double>(t.size()), std::vector<double>(t.size())};
  double pivot = 1;
  for (int64_t i = 0; i < t.size(); ++i) {
    const double above = i > 0 ? t.off_diagonal[i - 1] / lambda : 0.0;
    s.off_diagonal[i] = above / pivot;
    pivot = std::max(1.0, 1 + t.diagonal[i] / lambda - s.off_diagonal[i] * above);  // never below 1 without rounding
    s.inverse[i] = 1 / pivot;
  }
  return s;
}

// With the pivots p from the first row down and q from the last row up, element (i, i) of the inverse of a tridiagonal
// matrix is 1 / (p_i + q_i - its own element (i, i)) = 1 / (p_i - b_i^2 / q_(i+1)), b_i being the off-diagonal
// element of its row.
double ShrinkageTrace(const Tridiagonal& t, double lambda) {
  const Bidiagonal down = Shrinkage(t, lambda);
  double trace = 0, from_below = 0;  // b_i^2 / q_(i+1)
  for (int64_t i = t.size() - 1; i >= 0; --i) {
    trace += 1 / std::max(1.0, 1 / down.inverse[i] - from_below);
    if (i == 0) break;
    const double pivot = std::max(1.0, 1 + t.diagonal[i] / lambda - from_below), above = t.off_diagonal[i - 1] / lambda;
    from_below = above / pivot * above;
  }
  return trace;
}

std::optional<Bidiagonal> FactorFromBelow(const Tridiagonal& t) {
  Bidiagonal root{std::vector<double>(t.size()), std::vector<double>(t.size())};
  for (int64_t i = t.size() - 1; i >= 0; --i) {
    const bool last = i + 1 == t.size();
    root.off_diagonal[i] = last ? 0.0 : t.off_diagonal[i] * root.inverse[i + 1];
    const double pivot = t.diagonal[i] - (last ? 0.0 : root.off_diagonal[i] * t.off_diagonal[i]);
    if (!(pivot > 0)) return std::nullopt;
    root.inverse[i] = 1 / pivot;
  }
  return root;
}

std::vector<double> ShrunkSquares(const Bidiagonal& root, std::span<const Bidiagonal> shrinkages,
                                  MatrixView<const double> b) {
  std::vector<double> sums;
  Matrix<double> y(b.rows, b.cols);
  for (const Bidiagonal& s : shrinkages) {
    for (int64_t i = 0; i < b.rows; ++i)
      for (int64_t c = 0; c < b.cols; ++c) y(i, c) = b(i, c) - (i > 0 ? s.off_diagonal[i] * y(i - 1, c) : 0.0);
    double sum = 0;
    std::vector<double> x(b.cols, 0.0), scaled(b.cols, 0.0);
    for (int64_t i = b.rows - 1; i >= 0; --i) {
      const double below = i + 1 < b.rows ? s.off_diagonal[i + 1] : 0.0;
      for (int64_t c = 0; c < b.cols; ++c) {
        x[c] = y(i, c) * s.inverse[i] - below * x[c];
        scaled[c] = x[c] - root.off_diagonal[i] * scaled[c];
        sum += scaled[c] * scaled[c] * root.inverse[i];
      }
    }
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace shiftrt::linalg
