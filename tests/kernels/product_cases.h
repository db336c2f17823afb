// SPDX-License-Identifier: Apache-2.0
// Matrix products, and the rows that they are added to.
#pragma once

#include <string>
#include <utility>

#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct ProductShape {
  int64_t m, n, k;

  std::string Name() const { return fmt::format("m {} n {} k {}", m, n, k); }
};

// Few and many rows, around the heights and widths of tiles; sizes that no vector width divides, and others; odd
// depths; more than one block of rows, of columns and of depth.
inline std::vector<ProductShape> ProductShapes() {
  std::vector<ProductShape> shapes;
  for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 12, 13, 64})
    for (const int64_t n : {1, 7, 33, 257, 300})
      for (const int64_t k : {1, 7, 33, 257, 300}) shapes.push_back({m, n, k});
  using Sides = std::pair<int64_t, int64_t>;
  for (const int64_t m : {5, 11, 12, 13, 15, 16, 17, 31, 32, 33})
    for (const auto& [n, k] :
         {Sides{1, 1}, {15, 31}, {16, 32}, {17, 33}, {33, 33}, {48, 64}, {65, 63}, {65, 600}, {31, 1155}})
      shapes.push_back({m, n, k});
  for (const auto& [n, k] : {Sides{33, 300}, {300, 33}, {1, 7}, {67, 257}, {65, 593}}) shapes.push_back({770, n, k});
  shapes.insert(shapes.end(), {{33, 97, 600}, {24, 40, 72}, {16, 24, 32}, {17, 3, 29}});
  return shapes;
}

// X B in float64, for dense X (m, k) and B (k, n).
inline std::vector<Exact> Product(const ProductShape& shape, const std::vector<double>& x,
                                  const std::vector<double>& b) {
  const auto& [m, n, depth] = shape;
  std::vector<Exact> products(m * n);
  std::vector<double> values(n), sizes(n);
  for (int64_t i = 0; i < m; ++i) {
    std::fill(values.begin(), values.end(), 0.0);
    std::fill(sizes.begin(), sizes.end(), 0.0);
    for (int64_t k = 0; k < depth; ++k) {
      const double left = x[i * depth + k];
      const double* const right = b.data() + k * n;
      for (int64_t j = 0; j < n; ++j) {
        values[j] += left * right[j];
        sizes[j] += std::abs(left * right[j]);
      }
    }
    for (int64_t j = 0; j < n; ++j) products[i * n + j] = {values[j], sizes[j]};
  }
  return products;
}

// The inputs of a product, and its results in float64. B is stored in one type, and both operands may be rounded to
// another before they are multiplied.
struct ProductProblem {
  explicit ProductProblem(const ProductShape& shape, DType stored = DType::kFloat32, DType multiplied = DType::kFloat32)
      : shape(shape),
        x(Drawn(shape.m * shape.k, 1)),
        b(Drawn(shape.k * shape.n, 2, 1, stored)),
        bias(Drawn(shape.n, 3)),
        before(Drawn(shape.m * shape.n, 4, 10)),
        products(Product(shape, Nearest(x, multiplied), Nearest(b, multiplied))) {}

  // X B, with a bias (n) in every row unless it is empty.
  std::vector<Exact> Exactly(bool accumulated, const std::vector<double>& added = {}) const {
    std::vector<Exact> sums = products;
    for (size_t i = 0; i < sums.size(); ++i) {
      if (!added.empty()) sums[i].Add(added[i % shape.n]);
      if (accumulated) sums[i].Add(before[i]);
    }
    return sums;
  }

  ProductShape shape;
  std::vector<double> x, b;          // (m, k), (k, n)
  std::vector<double> bias, before;  // (n), (m, n)
  std::vector<Exact> products;
};

}  // namespace shiftrt::test
