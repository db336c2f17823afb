// SPDX-License-Identifier: Apache-2.0
// Tests the solver on the GPU: the requirements on every solver, and problems that the host transfers to it.
#include "runtime/linalg/linalg.h"
#include "tests/cuda/fixture.h"
#include "tests/runtime/solver_cases.h"

namespace shiftrt::gpu {
namespace {

namespace cases = linalg::cases;

class SolverOnGpu : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    solver_ = MakeSolver(0);
    there_ = {.device = Device::kCuda, .solver = solver_};
  }
  const Context here_{1, Isa::kPortable};
  Context there_;
  std::shared_ptr<linalg::Solver> solver_;
};

TEST_F(SolverOnGpu, Products) { cases::Products(*solver_); }
TEST_F(SolverOnGpu, RowsAndViews) { cases::RowsAndViews(*solver_); }
TEST_F(SolverOnGpu, Cholesky) { cases::Cholesky(*solver_); }

TEST_F(SolverOnGpu, Eigen) {
  for (const int64_t n : {20, 97, TooLarge(250, 200) ? 161 : 250}) cases::Eigen(*solver_, cases::Symmetric(n, 9));
  cases::Eigen(*solver_, cases::GramOf(4, 60));
}

TEST_F(SolverOnGpu, ShrinkageInTheTridiagonalBasis) {
  for (const int64_t n : {1, 16, 37}) cases::Shrinkage(*solver_, n, 45);
}

// A view of the inner columns of a wider matrix.
MatrixView<double> Inner(const Matrix<double>& m) { return m.view().Cols(1, m.cols() - 3); }

TEST_F(SolverOnGpu, ProductsOfViewsThereAndBack) {
  const int64_t m = 260, n = 231, k = 310;
  const Matrix<double> a = cases::Normal(m, k + 3, 1), b = cases::Normal(k, n + 3, 2);
  for (const double beta : {0.0, 0.5}) {
    const Matrix<double> found = cases::Normal(m, n + 3, 3), expected = found.Clone();
    linalg::Gemm(there_, false, false, -1.5, Inner(a), Inner(b), beta, Inner(found));
    linalg::Gemm(here_, false, false, -1.5, Inner(a), Inner(b), beta, Inner(expected));
    EXPECT_LE(cases::Distance(found, expected), 1e-14) << "and nothing outside the view is touched";
  }
}

TEST_F(SolverOnGpu, CholeskyEstimatesTheCondition) {
  const int64_t n = 240;
  Matrix<double> system = cases::GramOf(n, n);
  for (int64_t i = 0; i < n; ++i) system(i, i) += static_cast<double>(n);
  Matrix<double> x[2];
  double rcond[2] = {};
  for (const Context& context : {here_, there_}) {
    const int at = context.solver != nullptr;
    x[at] = cases::Normal(n, 300, 7);
    ASSERT_TRUE(linalg::CholeskySolve(context, system.Clone().view(), x[at].view(), &rcond[at]));
  }
  EXPECT_LE(cases::Distance(x[1], x[0]), 1e-13);
  EXPECT_NEAR(rcond[1], rcond[0], 1e-6 * rcond[0]);
}

}  // namespace
}  // namespace shiftrt::gpu
