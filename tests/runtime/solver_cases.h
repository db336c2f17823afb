// SPDX-License-Identifier: Apache-2.0
// The requirements on every solver, tested against definitions and plain loops: on the host in tests/runtime, on a GPU
// in tests/cuda.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/linalg/solver.h"
#include "runtime/random.h"

namespace shiftrt::linalg::cases {

inline Matrix<double> Normal(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix<double> m(rows, cols);
  for (double& x : m.span()) x = random.Normal();
  return m;
}

// op(a) op(b), computed by loops.
inline Matrix<double> Product(const Matrix<double>& a, const Matrix<double>& b, bool transpose_a = false,
                              bool transpose_b = false) {
  const int64_t inner = transpose_a ? a.rows() : a.cols();
  Matrix<double> c(transpose_a ? a.cols() : a.rows(), transpose_b ? b.rows() : b.cols());
  for (int64_t i = 0; i < c.rows(); ++i) {
    for (int64_t j = 0; j < c.cols(); ++j) {
      c(i, j) = 0;
      for (int64_t k = 0; k < inner; ++k)
        c(i, j) += (transpose_a ? a(k, i) : a(i, k)) * (transpose_b ? b(j, k) : b(k, j));
    }
  }
  return c;
}

inline double Norm(const Matrix<double>& m) {
  double sum = 0;
  for (const double x : m.span()) sum += x * x;
  return std::sqrt(sum);
}

// |found - expected| / |expected|; infinite if there is a NaN.
inline double Distance(const Matrix<double>& found, const Matrix<double>& expected) {
  const Matrix<double> difference = found.Clone();
  for (int64_t i = 0; i < difference.size(); ++i) difference.data()[i] -= expected.data()[i];
  const double distance = Norm(difference) / Norm(expected);
  return std::isnan(distance) ? HUGE_VAL : distance;
}

// A symmetric matrix whose lower triangle, which must not be read, is NaN.
inline Matrix<double> UpperOf(const Matrix<double>& a) {
  Matrix<double> upper = a.Clone();
  for (int64_t i = 0; i < a.rows(); ++i)
    for (int64_t j = 0; j < i; ++j) upper(i, j) = std::numeric_limits<double>::quiet_NaN();
  return upper;
}
inline Matrix<double> Symmetric(int64_t n, uint64_t seed) {
  Matrix<double> a = Normal(n, n, seed);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) a(i, j) = a(j, i);
  return a;
}
// b'b of b (rank, n). With rank < n, eigenvalues coincide, as in the Gram matrix of few tokens.
inline Matrix<double> GramOf(int64_t rank, int64_t n) {
  const Matrix<double> b = Normal(rank, n, 11);
  return Product(b, b, true);
}

inline void Products(Solver& solver) {
  const int64_t m = 37, n = 29, k = 41;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const Matrix<double> a = transpose_a ? Normal(k, m, 1) : Normal(m, k, 1),
                           b = transpose_b ? Normal(n, k, 2) : Normal(k, n, 2), before = Normal(m, n, 3);
      const ArrayPtr there_a = solver.Uploaded(a.view()), there_b = solver.Uploaded(b.view()),
                     c = solver.Uploaded(before.view());
      const Matrix<double> product = Product(a, b, transpose_a, transpose_b), expected = before.Clone();
      for (int64_t i = 0; i < expected.size(); ++i)
        expected.data()[i] = 0.5 * before.data()[i] - 1.5 * product.data()[i];
      solver.Gemm({*there_a, transpose_a}, {*there_b, transpose_b}, {-1.5, 0.5}, *c);
      EXPECT_LE(Distance(solver.Downloaded(*c), expected), 1e-14);
      const ArrayPtr fresh = solver.Product({*there_a, transpose_a}, {*there_b, transpose_b});
      EXPECT_LE(Distance(solver.Downloaded(*fresh), product), 1e-14);
    }
  }
  const Matrix<double> a = Symmetric(n, 4), tall = Normal(n, m, 5), wide = Normal(m, n, 6);
  const ArrayPtr upper = solver.Uploaded(UpperOf(a).view()), left = solver.Make(n, m), right = solver.Make(m, n);
  solver.Symm(Side::kLeft, *upper, *solver.Uploaded(tall.view()), *left);
  solver.Symm(Side::kRight, *upper, *solver.Uploaded(wide.view()), *right);
  EXPECT_LE(Distance(solver.Downloaded(*left), Product(a, tall)), 1e-14);
  EXPECT_LE(Distance(solver.Downloaded(*right), Product(wide, a)), 1e-14);
}

inline void RowsAndViews(Solver& solver) {
  const int64_t rows = 13, cols = 50;
  const Matrix<double> wider = Normal(rows, cols + 9, 7);
  const MatrixView<double> inner = wider.view().Cols(4, cols);
  const Matrix<double> other = Normal(rows, cols, 8);
  std::vector<double> factors(rows), squares(rows, 0.0), dots(rows, 0.0);
  Matrix<double> expected(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    factors[i] = i == 3 ? 0.0 : 1.0 / static_cast<double>(i + 1);
    for (int64_t j = 0; j < cols; ++j) {
      expected(i, j) = factors[i] * inner(i, j);
      squares[i] += inner(i, j) * inner(i, j);
      dots[i] += inner(i, j) * other(i, j);
    }
  }
  const ArrayPtr a = solver.Uploaded(inner);
  const std::vector<double> found = solver.RowDots(*a, *a), mixed = solver.RowDots(*a, *solver.Reading(other.view()));
  ASSERT_EQ(found.size(), squares.size());
  ASSERT_EQ(mixed.size(), dots.size());
  for (int64_t i = 0; i < rows; ++i) {
    EXPECT_NEAR(found[i], squares[i], 1e-14 * squares[i]);
    EXPECT_NEAR(mixed[i], dots[i], 1e-14 * 50 * squares[i]);
  }
  const ArrayPtr leading = solver.Make(rows - 2, cols - 3);
  solver.Copy(*solver.Reading(inner), *leading);
  const Matrix<double> block = solver.Downloaded(*leading);
  for (int64_t i = 0; i < rows - 2; ++i) EXPECT_TRUE(std::equal(block.row(i), block.row(i) + cols - 3, inner.row(i)));
  const std::vector<double> elements = solver.Elements(*solver.Reading(inner), 3, cols + 1, rows);
  for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(elements[i], inner(i, 3 + i));
  const ArrayPtr copy = solver.Copied(*a);
  solver.ScaleRows(factors, *a);
  EXPECT_EQ(Distance(solver.Downloaded(*a), expected), 0.0);
  EXPECT_EQ(solver.RowDots(*copy, *copy), found) << "a copy of its own";

  const Matrix<double> before = wider.Clone();
  solver.Download(*a, inner);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < wider.cols(); ++j)
      EXPECT_EQ(wider(i, j), j < 4 || j >= 4 + cols ? before(i, j) : expected(i, j - 4));
}

inline void Cholesky(Solver& solver) {
  const int64_t n = 60, columns = 17;
  Matrix<double> a = GramOf(n, n);
  for (int64_t i = 0; i < n; ++i) a(i, i) += static_cast<double>(n);
  const Matrix<double> right = Normal(n, columns, 7);
  const ArrayPtr factor = solver.Uploaded(UpperOf(a).view()), x = solver.Uploaded(right.view());
  ASSERT_TRUE(solver.CholeskySolve(*factor, *x, nullptr));
  EXPECT_LE(Distance(Product(a, solver.Downloaded(*x)), right), 1e-13);
  Matrix<double> u = solver.Downloaded(*factor);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) u(i, j) = 0;
  EXPECT_LE(Distance(Product(u, u, true), a), 1e-14);
  a(40, 40) = -1;
  EXPECT_FALSE(solver.CholeskySolve(*solver.Uploaded(a.view()), *solver.Uploaded(right.view()), nullptr));
}

// Expects that the rows of `vectors` are, up to rounding, orthonormal eigenvectors for `values`.
inline void ExpectEigenpairs(const Matrix<double>& a, std::vector<double> values, const Matrix<double>& vectors) {
  const double tolerance = 20 * static_cast<double>(a.rows()) * std::numeric_limits<double>::epsilon();
  const Matrix<double> image = Product(vectors, a), products = Product(vectors, vectors, false, true);
  for (int64_t k = 0; k < vectors.rows(); ++k) {
    for (int64_t j = 0; j < a.rows(); ++j) ASSERT_NEAR(image(k, j), values[k] * vectors(k, j), tolerance * Norm(a));
    for (int64_t j = 0; j < vectors.rows(); ++j) ASSERT_NEAR(products(k, j), k == j ? 1 : 0, tolerance);
  }
}

inline void Eigen(Solver& solver, const Matrix<double>& a) {
  const int64_t n = a.rows();
  const ArrayPtr there = solver.Uploaded(UpperOf(a).view());
  const std::vector<double> values = solver.Eigen(*there);
  ASSERT_EQ(std::ssize(values), n);
  ASSERT_TRUE(std::is_sorted(values.begin(), values.end()));
  ExpectEigenpairs(a, values, solver.Downloaded(*there));
  for (const int64_t count : {int64_t{1}, (n + 1) / 2, n}) {
    const ArrayPtr spent = solver.Uploaded(UpperOf(a).view());
    const LeadingEigenpairs leading = LeadingEigen(solver, *spent, count);
    const std::vector<double> all = leading.Values();
    ASSERT_EQ(std::ssize(all), n);
    for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(all[i], values[i], 1e-14 * static_cast<double>(n) * Norm(a));
    ASSERT_EQ(leading.vectors->rows(), count);
    ExpectEigenpairs(a, {all.rbegin(), all.rend()}, solver.Downloaded(*leading.vectors));
  }
}

// Shrinkage by lambda from an eigendecomposition: its trace, and what it leaves of the right sides.
inline void Shrinkage(Solver& solver, int64_t n, int64_t columns) {
  Matrix<double> a = GramOf(n, n);
  for (int64_t i = 0; i < n; ++i) a(i, i) += 0.5;
  const Matrix<double> right = Normal(n, columns, 7);
  const ArrayPtr vectors = solver.Uploaded(UpperOf(a).view()), reduced = solver.Uploaded(UpperOf(a).view());
  const std::vector<double> values = solver.Eigen(*vectors);
  const Matrix<double> projected = Product(solver.Downloaded(*vectors), right);
  const Tridiagonal t = solver.Tridiagonalize(*reduced);
  const std::pair<double, double> extremes = ExtremeEigenvalues(t);
  EXPECT_NEAR(extremes.first, values.front(), 1e-13 * values.back());
  EXPECT_NEAR(extremes.second, values.back(), 1e-13 * values.back());
  const ArrayPtr b = solver.Uploaded(right.view());
  solver.RotateColumns(*reduced, t, *b);
  const std::optional<Bidiagonal> root = FactorFromBelow(t);
  ASSERT_TRUE(root);
  const std::vector<double> lambdas = {1e-6, 0.3, 40, 1e9, std::numeric_limits<double>::infinity()};
  std::vector<Bidiagonal> shrinkages;
  for (const double lambda : lambdas) shrinkages.push_back(linalg::Shrinkage(t, lambda));
  const std::vector<double> found = solver.ShrunkSquares(*root, shrinkages, *b);
  ASSERT_EQ(found.size(), lambdas.size());
  for (size_t k = 0; k < lambdas.size(); ++k) {
    double trace = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double shrinkage = 1 / (1 + values[i] / lambdas[k]);
      trace += shrinkage;
      for (int64_t j = 0; j < columns; ++j)
        squares += shrinkage * shrinkage * projected(i, j) * projected(i, j) / values[i];
    }
    EXPECT_NEAR(ShrinkageTrace(t, lambdas[k]), trace, 1e-12 * trace) << lambdas[k];
    EXPECT_NEAR(found[k], squares, 1e-11 * squares) << lambdas[k];
  }
  const ArrayPtr raised = solver.Uploaded(a.view());
  solver.AddToDiagonal(-2.5, *raised);
  for (int64_t i = 0; i < n; ++i) a(i, i) -= 2.5;
  EXPECT_EQ(Distance(solver.Downloaded(*raised), a), 0.0);
}

}  // namespace shiftrt::linalg::cases
