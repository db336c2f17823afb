// SPDX-License-Identifier: Apache-2.0
// Tests the solver on the host, and which problems go to another solver.
#include "runtime/linalg/solver.h"

#include <utility>

#include "runtime/linalg/linalg.h"
#include "tests/runtime/refusal.h"
#include "tests/runtime/solver_cases.h"

namespace shiftrt::linalg {
namespace {

const Context kContext{1, Isa::kPortable};

TEST(HostSolver, Products) { cases::Products(*MakeHostSolver(kContext)); }
TEST(HostSolver, RowsAndViews) { cases::RowsAndViews(*MakeHostSolver(kContext)); }
TEST(HostSolver, Cholesky) { cases::Cholesky(*MakeHostSolver(kContext)); }

TEST(HostSolver, Eigen) {
  for (const int64_t n : {1, 2, 3, 20, 97}) cases::Eigen(*MakeHostSolver(kContext), cases::Symmetric(n, 9));
  cases::Eigen(*MakeHostSolver(kContext), cases::GramOf(4, 30));
}

TEST(HostSolver, ShrinkageInTheTridiagonalBasis) {
  for (const int64_t n : {1, 2, 20, 61}) cases::Shrinkage(*MakeHostSolver(kContext), n, 19);
}

TEST(HostSolver, FactorsOfWhatIsNotDefiniteAreNone) {
  Tridiagonal t{std::vector<double>(30, 2.5), std::vector<double>(30, -1.0), {}};
  EXPECT_TRUE(FactorFromBelow(t));
  t.diagonal[12] = 0;
  EXPECT_FALSE(FactorFromBelow(t));
}

TEST(HostSolver, RefusesWhatIsNotFiniteOrHasNoSuchVectors) {
  const auto solver = MakeHostSolver(kContext);
  const Matrix<double> nan = cases::Symmetric(4, 1);
  nan(0, 2) = std::nan("");
  EXPECT_THROW(solver->Eigen(*solver->Uploaded(nan.view())), Error);
  EXPECT_THROW(LeadingEigen(*solver, *solver->Uploaded(nan.view()), 1), Error);
  const ArrayPtr a = solver->Uploaded(cases::Symmetric(4, 1).view());
  EXPECT_THROW(LeadingEigen(*solver, *a, 0), Error);
  EXPECT_THROW(LeadingEigen(*solver, *a, 5), Error);
}

// A solver whose device has no memory, and reports that, or that must not be used at all.
class Elsewhere : public Solver {
 public:
  explicit Elsewhere(bool full) : full_(full) {}
  bool AvoidsEigen(int64_t /*n*/, int64_t /*sides*/) const override { return false; }
  ArrayPtr Make(int64_t, int64_t) override {
    ++asked;
    if (full_) throw OutOfMemory("a test", 2, 1, 1);
    throw Error("somewhere else");
  }
  void Upload(MatrixView<const double>, Array&) override { ADD_FAILURE(); }
  void Download(const Array&, MatrixView<double>) override { ADD_FAILURE(); }
  void Copy(const Array&, Array&) override { ADD_FAILURE(); }
  std::vector<double> Elements(const Array&, int64_t, int64_t, int64_t) override { return {}; }
  void Gemm(const Operand&, const Operand&, const Scales&, Array&) override { ADD_FAILURE(); }
  void Symm(Side, const Array&, const Array&, Array&) override { ADD_FAILURE(); }
  bool CholeskySolve(Array&, Array&, double*) override { return false; }
  std::vector<double> Eigen(Array&) override { return {}; }
  Tridiagonal Tridiagonalize(Array&) override { return {}; }
  void Rotate(const Array&, const Tridiagonal&, Array&) override { ADD_FAILURE(); }
  void RotateColumns(const Array&, const Tridiagonal&, Array&) override { ADD_FAILURE(); }
  std::vector<double> ShrunkSquares(const Bidiagonal&, std::span<const Bidiagonal>, const Array&) override {
    return {};
  }
  void AddToDiagonal(double, Array&) override { ADD_FAILURE(); }
  void ScaleRows(std::span<const double>, Array&) override { ADD_FAILURE(); }
  std::vector<double> RowDots(const Array&, const Array&) override { return {}; }
  int asked = 0;

 private:
  bool full_;
};

struct Problems {
  explicit Problems(int64_t n) : b(cases::Normal(n, n, 2)), c(n, n), a(cases::GramOf(n, n)) {
    for (int64_t i = 0; i < n; ++i) a(i, i) += static_cast<double>(n);
  }
  void Multiply(const Context& context) { linalg::Gemm(context, false, false, 1.0, a.view(), b.view(), 0.0, c.view()); }
  void MultiplySymmetric(const Context& context) { linalg::Symm(context, Side::kLeft, a.view(), b.view(), c.view()); }
  bool Solve(const Context& context) { return linalg::CholeskySolve(context, a.Clone().view(), b.view(), nullptr); }
  Matrix<double> b, c, a;
};

TEST(Moved, SmallProblemsStayAndLargeOnesGo) {
  const auto solver = std::make_shared<Elsewhere>(/*full=*/false);
  const Context context{.threads = 1, .device = Device::kCuda, .solver = solver};
  Problems small(16), large(260);
  small.Multiply(context);
  small.MultiplySymmetric(context);
  EXPECT_TRUE(small.Solve(context));
  EXPECT_EQ(solver->asked, 0);
  EXPECT_THROW(large.Multiply(context), Error);
  EXPECT_THROW(large.MultiplySymmetric(context), Error);
  EXPECT_THROW(large.Solve(context), Error);
  EXPECT_EQ(solver->asked, 3);
  large.Multiply({.threads = 1, .device = Device::kCpu, .solver = solver});
  EXPECT_EQ(solver->asked, 3) << "a context of the CPU asks nobody";
}

TEST(Moved, WhatFindsNoMemoryIsSolvedHere) {
  const auto solver = std::make_shared<Elsewhere>(/*full=*/true);
  const Context context{.threads = 1, .device = Device::kCuda, .solver = solver};
  Problems there(260), here(260);
  there.Multiply(context);
  here.Multiply(kContext);
  EXPECT_EQ(cases::Distance(there.c, here.c), 0.0);
  EXPECT_TRUE(there.Solve(context));
  EXPECT_TRUE(here.Solve(kContext));
  EXPECT_EQ(cases::Distance(there.b, here.b), 0.0);
  EXPECT_EQ(solver->asked, 2);
  const std::vector<double> values =
      WithSolver(context, 1e9, 1e3, [&](Solver& any) { return any.Eigen(*any.Uploaded(there.a.view())); });
  EXPECT_EQ(values.size(), 260u);
  EXPECT_EQ(solver->asked, 3);
}

}  // namespace
}  // namespace shiftrt::linalg
