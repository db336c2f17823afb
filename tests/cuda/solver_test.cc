// runtime/linalg.h with the GPU's solver against itself without: above and below the size that is worth the way.
#include <cmath>

#include "runtime/linalg.h"
#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

// Counts what it is asked for.
class Counting : public linalg::Solver {
 public:
  explicit Counting(std::shared_ptr<linalg::Solver> solver) : solver_(std::move(solver)) {}
  void Gemm(const linalg::Operand& a, const linalg::Operand& b, const linalg::Scales& scales,
            MatrixView<double> c) override {
    ++asked;
    solver_->Gemm(a, b, scales, c);
  }
  bool CholeskySolve(MatrixView<double> a, MatrixView<double> b) override {
    ++asked;
    return solver_->CholeskySolve(a, b);
  }
  bool SymmetricEigen(MatrixView<double> a, std::span<double> values) override {
    ++asked;
    return solver_->SymmetricEigen(a, values);
  }
  int asked = 0;

 private:
  std::shared_ptr<linalg::Solver> solver_;
};

Matrix<double> Normal(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix<double> m(rows, cols);
  for (double& x : m.span()) x = random.Normal();
  return m;
}

// The inner columns of a wider matrix.
MatrixView<double> Inner(const Matrix<double>& m) { return m.view().Cols(1, m.cols() - 3); }

double Distance(MatrixView<const double> a, MatrixView<const double> b) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) {
      difference += std::pow(a(i, j) - b(i, j), 2);
      size += std::pow(b(i, j), 2);
    }
  }
  const double distance = std::sqrt(difference / size);
  return std::isnan(distance) ? HUGE_VAL : distance;
}

class SolverOnGpu : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    solver_ = std::make_shared<Counting>(MakeSolver());
    there_ = {.device = Device::kCuda, .solver = solver_};
  }
  // b'b + n I.
  Matrix<double> PositiveDefinite(int64_t n) {
    const Matrix<double> b = Normal(n, n, 5);
    Matrix<double> a = Matrix<double>::Zeros(n, n);
    for (int64_t i = 0; i < n; ++i) a(i, i) = static_cast<double>(n);
    linalg::Gemm(here_, true, false, 1.0, b.view(), b.view(), 1.0, a.view());
    return a;
  }
  const Context here_{1, Isa::kPortable};
  Context there_;
  std::shared_ptr<Counting> solver_;
};

TEST_F(SolverOnGpu, ProductsAreBlas) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const int64_t m = 260, n = 231, k = 310;
      const Matrix<double> a = Normal(transpose_a ? k : m, 3 + (transpose_a ? m : k), 1),
                           b = Normal(transpose_b ? n : k, 3 + (transpose_b ? k : n), 2);
      for (const double beta : {0.0, 0.5}) {
        const Matrix<double> found = Normal(m, n + 3, 3), expected = found.Clone();
        linalg::Gemm(there_, transpose_a, transpose_b, -1.5, Inner(a), Inner(b), beta, Inner(found));
        linalg::Gemm(here_, transpose_a, transpose_b, -1.5, Inner(a), Inner(b), beta, Inner(expected));
        EXPECT_LE(Distance(found.view(), expected.view()), 1e-14) << "and nothing beside the view is touched";
      }
    }
  }
  EXPECT_EQ(solver_->asked, 8);
}

TEST_F(SolverOnGpu, CholeskySolvesAndEstimatesTheCondition) {
  const int64_t n = 240, columns = 300;
  const Matrix<double> system = PositiveDefinite(n), right = Normal(n, columns, 7);
  Matrix<double> x[2];
  double rcond[2] = {};
  for (const Context& context : {here_, there_}) {
    const int at = context.solver != nullptr;
    const Matrix<double> a = system.Clone();
    x[at] = right.Clone();
    ASSERT_TRUE(linalg::CholeskySolve(context, a.view(), x[at].view(), &rcond[at]));
  }
  EXPECT_EQ(solver_->asked, 1);
  EXPECT_LE(Distance(x[1].view(), x[0].view()), 1e-13);
  EXPECT_NEAR(rcond[1], rcond[0], 1e-6 * rcond[0]);
  Matrix<double> image(n, columns);
  linalg::Gemm(here_, false, false, 1.0, system.view(), x[1].view(), 0.0, image.view());
  EXPECT_LE(Distance(image.view(), right.view()), 1e-13);
}

TEST_F(SolverOnGpu, CholeskySaysWhatIsNotPositiveDefinite) {
  const Matrix<double> a = PositiveDefinite(240), b = Normal(240, 240, 1);
  a(200, 200) = -1e4;
  EXPECT_FALSE(linalg::CholeskySolve(there_, a.view(), b.view(), nullptr));
  EXPECT_EQ(solver_->asked, 1);
}

TEST_F(SolverOnGpu, EigenvectorsDiagonalise) {
  const int64_t n = 120;
  const Matrix<double> a = PositiveDefinite(n), v = a.Clone(), w = a.Clone(), rest = a.Clone();
  const std::vector<double> values = linalg::SymmetricEigen(there_, v.view()),
                            expected = linalg::SymmetricEigen(here_, w.view());
  for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(values[i], expected[i], 1e-12 * expected.back());
  Matrix<double> image(n, n);  // a v = v diag(values)
  linalg::Gemm(here_, false, false, 1.0, a.view(), v.view(), 0.0, image.view());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) EXPECT_NEAR(image(i, j), values[j] * v(i, j), 1e-11 * expected.back());
  const linalg::LeadingEigen leading = linalg::SymmetricEigenLeading(there_, rest.view(), 5);
  for (int64_t j = 0; j < 5; ++j) {
    double cosine = 0;
    for (int64_t i = 0; i < n; ++i) cosine += leading.vectors(i, j) * v(i, n - 1 - j);
    EXPECT_NEAR(std::abs(cosine), 1.0, 1e-10);
  }
  EXPECT_EQ(leading.values.size(), 120u);
  EXPECT_EQ(solver_->asked, 2);
}

TEST_F(SolverOnGpu, SmallProblemsStay) {
  const Matrix<double> a = PositiveDefinite(16), b = Normal(16, 16, 2), c(16, 16);
  linalg::Gemm(there_, false, false, 1.0, a.view(), b.view(), 0.0, c.view());
  linalg::SymmetricEigen(there_, a.Clone().view());
  EXPECT_TRUE(linalg::CholeskySolve(there_, a.view(), b.view(), nullptr));
  EXPECT_EQ(solver_->asked, 0);
}

}  // namespace
}  // namespace shiftrt::gpu
