// SPDX-License-Identifier: Apache-2.0
// Steps on rows whose results are exact or have one rounding per addition: sums, dropout, rows that are chosen by their
// numbers, and sums of columns.
#pragma once

#include <string>

#include "kernels/dropout.h"
#include "tests/kernels/exact.h"

namespace shiftrt::test {

inline double InFloat32(double x) { return static_cast<double>(static_cast<float>(x)); }

inline void ExpectEqual(const char* name, const std::vector<double>& found, const std::vector<double>& expected) {
  SCOPED_TRACE(name);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], expected[i]) << "at " << i;
}

struct RowsCase {
  int64_t rows, cols;
  int64_t gap;  // elements between two rows, which stay as they are

  std::string Name() const { return fmt::format("{} rows of {}, {} apart", rows, cols, gap); }
};

// Widths and strides that are multiples of those of vectors, and others.
inline std::vector<RowsCase> RowsCases() {
  return {{1, 1, 5}, {3, 1048, 0}, {3, 40, 8}, {5, 7, 0}, {2, 1030, 7}, {4, 1, 2}, {37, 33, 5}};
}

// The inputs of a case, and the results of the steps.
struct RowsProblem {
  explicit RowsProblem(const RowsCase& c)
      : c(c), x(Drawn(c.rows * c.cols, 1)), y(Drawn(c.rows * c.cols, 2)), row(Drawn(c.cols, 3)) {}

  // y + factor x, and then `added` (cols) unless it is empty. Each addition rounds to float32.
  std::vector<double> Sums(double factor, const std::vector<double>& added = {}) const {
    std::vector<double> sums(y.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = InFloat32(y[i] + factor * x[i]);
      if (!added.empty()) sums[i] = InFloat32(sums[i] + added[i % c.cols]);
    }
    return sums;
  }
  std::vector<double> Dropped(const Dropout& dropout) const {
    std::vector<double> kept(x.size());
    for (size_t i = 0; i < kept.size(); ++i)
      if (Dropout::Bits(dropout.key, i) >= dropout.Threshold())
        kept[i] = InFloat32(x[i] * static_cast<double>(dropout.Scale()));
    return kept;
  }
  // Expects row + the sum of the rows of x in `found` (cols). The longest path of a sum has `terms` additions.
  void ExpectColumnSums(const std::vector<double>& found, int64_t terms) const {
    SCOPED_TRACE(c.Name());
    ASSERT_EQ(std::ssize(found), c.cols);
    for (int64_t j = 0; j < c.cols; ++j) {
      Exact sum;
      sum.Add(row[j]);
      for (int64_t i = 0; i < c.rows; ++i) sum.Add(x[i * c.cols + j]);
      // The numbers are normal, so that roundings to either side cancel and partial sums stay far below the size.
      EXPECT_CLOSE(found[j], sum.value,
                   std::min(SumTolerance(terms, sum.size), 4 * kUnit * static_cast<double>(c.rows + 8)), j);
    }
  }

  RowsCase c;
  std::vector<double> x, y;  // (rows, cols)
  std::vector<double> row;   // (cols)
};

constexpr Dropout kDropout{0x123456789abcdefu, 0.3f};

inline std::vector<RowsCase> ColumnSumsCases() {
  return {{0, 3, 5},   {1, 1, 5},    {1, 8, 0},    {3, 1, 3},     {5, 64, 5},
          {37, 70, 2}, {130, 67, 5}, {300, 33, 0}, {2100, 300, 5}};
}

// Row i of the result is row rows[i] of a table, widened to float32, times `scale`.
struct GatherCase {
  int64_t table_rows, cols, gap;
  std::vector<int32_t> rows;
  float scale;

  std::string Name() const {
    return fmt::format("rows {} of {} of {}, {} apart, scale {}", fmt::join(rows, ", "), table_rows, cols, gap, scale);
  }
};

// Rows that are chosen once, several times or never, in any order.
inline std::vector<GatherCase> GatherCases() {
  using Width = std::pair<int64_t, int64_t>;
  std::vector<GatherCase> cases;
  for (const auto& [cols, gap] :
       {Width{1, 2}, {7, 0}, {8, 0}, {33, 5}, {40, 8}, {128, 0}, {1030, 7}, {1032, 0}, {1048, 0}}) {
    for (const float scale : {1.0f, 6.9375f}) cases.push_back({7, cols, gap, {6, 0, 3, 3, 1, 6}, scale});
    cases.push_back({9, cols, gap, {8, 3, 7, 2, 6}, 1});
  }
  return cases;
}

struct GatherProblem {
  explicit GatherProblem(const GatherCase& c, DType type)
      : c(c), table(Drawn(c.table_rows * c.cols, 1, 1, type)), others(Drawn(c.table_rows * c.cols, 2)) {}
  int64_t count() const { return std::ssize(c.rows); }

  std::vector<double> Gathered() const {
    std::vector<double> out;
    for (const int32_t row : c.rows)
      for (int64_t j = 0; j < c.cols; ++j)
        out.push_back(InFloat32(table[row * c.cols + j] * static_cast<double>(c.scale)));
    return out;
  }
  // True if no row is chosen twice, so that rows can be put back into a table.
  bool scatters() const {
    std::vector<int32_t> sorted = c.rows;
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  }
  // `others` with the chosen rows as they are in the table.
  std::vector<double> Scattered() const {
    std::vector<double> out = others;
    for (const int32_t row : c.rows) std::copy_n(table.begin() + row * c.cols, c.cols, out.begin() + row * c.cols);
    return out;
  }

  GatherCase c;
  std::vector<double> table, others;  // (table_rows, cols)
};

}  // namespace shiftrt::test
