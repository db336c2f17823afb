// SPDX-License-Identifier: Apache-2.0
// Tests the factorizations in blocks against those in one call, and that they can be stopped between two blocks.
#include "runtime/linalg/large.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "tests/runtime/solver_cases.h"

namespace shiftrt::linalg {
namespace {

const Context kTwoThreads{2, Isa::kPortable};

// Keeps what is reported, and stops the computation at the report with this index.
class Listener : public Progress {
 public:
  explicit Listener(int stop = -1) : stop_(stop) {}
  void Begin(std::string_view, int64_t) override {}
  void Advance(int64_t) override {}
  void Within(std::string_view what, double share) override {
    if (std::ssize(reports) == stop_) throw Error("stopped");
    reports.emplace_back(what, share);
  }
  void End() override {}

  std::vector<std::pair<std::string, double>> reports;

 private:
  int stop_;
};

TEST(Large, CholeskyInBlocksIsThatOfOneCall) {
  for (const int64_t n : {1, 15, 16, 17, 100}) {
    const Matrix<double> a = cases::GramOf(2 * n + 3, n), b = cases::GramOf(n + 2, n), x = b.Clone(), once = a.Clone(),
                         blocks = a.Clone(), y = b.Clone();
    ASSERT_TRUE(CholeskySolve(kTwoThreads, once.view(), x.view(), nullptr));
    Listener listener;
    const ReportsSolves reports(listener);
    ASSERT_TRUE(FactorInBlocks(kTwoThreads, blocks.view(), 16));
    SolveInBlocks(kTwoThreads, blocks.view(), y.view());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) ASSERT_NEAR(blocks(i, j), once(i, j), 1e-9 * (1 + std::abs(once(i, i))));
      for (int64_t j = 0; j < n; ++j) ASSERT_NEAR(y(i, j), x(i, j), 1e-7);
    }
    ASSERT_EQ(std::ssize(listener.reports), (n + 15) / 16 + 1);
    EXPECT_EQ(listener.reports.front(),
              (std::pair<std::string, double>{fmt::format("Cholesky factorization of {} x {}", n, n), 0.0}));
    EXPECT_DOUBLE_EQ(listener.reports.back().second, 1.0);
  }
}

TEST(Large, CholeskyInBlocksFindsWhatIsNotDefinite) {
  for (const int64_t at : {0, 20, 39}) {
    const Matrix<double> a = cases::GramOf(100, 40);
    a(at, at) = -1;
    EXPECT_FALSE(FactorInBlocks(kTwoThreads, a.view(), 16)) << at;
  }
}

TEST(Large, TridiagonalFormInBlocksIsThatOfOneCall) {
  const auto solver = MakeHostSolver(kTwoThreads);
  for (const int64_t n : {1, 2, 7, 8, 9, 40, 97}) {
    const Matrix<double> a = cases::Symmetric(n, 5), blocks = a.Clone();
    const ArrayPtr once = solver->Uploaded(a.view());
    const Tridiagonal expected = solver->Tridiagonalize(*once),
                      t = TridiagonalizeInBlocks(kTwoThreads, blocks.view(), 4);
    for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(t.diagonal[i], expected.diagonal[i], 1e-10) << n << " " << i;
    for (int64_t i = 0; i + 1 < n; ++i)
      ASSERT_NEAR(t.off_diagonal[i], expected.off_diagonal[i], 1e-10) << n << " " << i;
    // The reflectors, too: rotated from either form, rows are the same.
    const Matrix<double> rows = cases::Symmetric(n, 6);
    const ArrayPtr rotated = solver->Uploaded(rows.view());
    solver->Rotate(*once, expected, *rotated);
    RotateRows(kTwoThreads, blocks.view(), t, rows.view());
    const Matrix<double> wanted = solver->Downloaded(*rotated);
    for (int64_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows.data()[i], wanted.data()[i], 1e-10);
  }
}

TEST(Large, EigenvaluesInBlocksAreThoseOfOneCall) {
  const auto solver = MakeHostSolver(kTwoThreads);
  for (const int64_t n : {1, 3, 70, 130}) {
    const Matrix<double> a = cases::Symmetric(n, 5), vectors = a.Clone();
    const std::vector<double> expected = solver->Eigen(*solver->Uploaded(a.view())),
                              values = EigenInBlocks(kTwoThreads, vectors.view());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(values[i], expected[i], 1e-10);
      for (int64_t j = 0; j < n; ++j) {  // a v = value v
        double image = 0;
        for (int64_t k = 0; k < n; ++k) image += a(std::min(j, k), std::max(j, k)) * vectors(i, k);
        ASSERT_NEAR(image, values[i] * vectors(i, j), 1e-10);
      }
    }
  }
}

TEST(Large, WhatTheListenerThrowsEndsTheWork) {
  Listener listener(2);
  const ReportsSolves reports(listener);
  EXPECT_THROW(FactorInBlocks(kTwoThreads, cases::GramOf(200, 100).view(), 16), Error);
  EXPECT_EQ(listener.reports.size(), 2U);
  EXPECT_THROW(TridiagonalizeInBlocks(kTwoThreads, cases::Symmetric(100, 1).view(), 4), Error);
}

TEST(Large, RangesCoverEachItemOnce) {
  for (const double flops : {1.0, 4e10, 3e11}) {
    std::vector<int> seen(10, 0);
    Listener listener;
    {
      const ReportsSolves reports(listener);
      InRanges("a test", 10, flops, [&](int64_t first, int64_t count) {
        for (int64_t i = first; i < first + count; ++i) ++seen[i];
      });
    }
    EXPECT_EQ(seen, std::vector<int>(10, 1)) << flops;
    EXPECT_EQ(std::ssize(listener.reports), flops < 2 ? 0 : (flops < 1e11 ? 6 : 11));
    LargeWork unheard("another", 1);
    unheard.Advance(1);
    EXPECT_TRUE(listener.reports.empty() || listener.reports.back().first == "a test");
  }
}

}  // namespace
}  // namespace shiftrt::linalg
