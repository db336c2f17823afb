// SPDX-License-Identifier: Apache-2.0
// Tests BLAS and LAPACK on our row-major, strided views against plain loops.
#include "runtime/linalg/linalg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/random.h"
#include "tests/runtime/refusal.h"

namespace shiftrt::linalg {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
const Context kContext{1, Isa::kPortable};

// A matrix with `pad` elements of padding after each row; the padding is NaN.
class Padded {
 public:
  Padded(int64_t rows, int64_t cols, int64_t pad = 3) : storage_(rows, cols + pad), cols_(cols) {
    for (double& x : storage_.span()) x = kNan;
  }
  static Padded Normal(int64_t rows, int64_t cols, uint64_t seed) {
    Padded m(rows, cols);
    Random random(seed);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) m.view()(i, j) = random.Normal();
    return m;
  }
  MatrixView<double> view() const { return storage_.view().Cols(0, cols_); }
  Padded Copy() const {
    Padded m(storage_.rows(), cols_, storage_.cols() - cols_);
    m.storage_ = storage_.Clone();
    return m;
  }
  bool PaddingIsUntouched() const {
    for (int64_t i = 0; i < storage_.rows(); ++i)
      for (int64_t j = cols_; j < storage_.cols(); ++j)
        if (!std::isnan(storage_(i, j))) return false;
    return true;
  }

 private:
  Matrix<double> storage_;
  int64_t cols_;
};

// b'b + n I: symmetric positive definite, with a condition number of about 10.
Padded PositiveDefinite(int64_t n, uint64_t seed) {
  const Padded b = Padded::Normal(n, n, seed);
  Padded a(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = i == j ? static_cast<double>(n) : 0.0;
      for (int64_t k = 0; k < n; ++k) sum += b.view()(k, i) * b.view()(k, j);
      a.view()(i, j) = sum;
    }
  }
  return a;
}

// Fills the lower triangle with NaN, because it must not be read.
void PoisonLower(MatrixView<double> a) {
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < i; ++j) a(i, j) = kNan;
}

TEST(Linalg, GemmInEveryTransposition) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 7, 3}, {7, 1, 5}, {5, 9, 33}, {65, 40, 130}, {130, 129, 2}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {} {} {}", m, n, k, transpose_a, transpose_b));
        const Padded a = transpose_a ? Padded::Normal(k, m, 1) : Padded::Normal(m, k, 1);
        const Padded b = transpose_b ? Padded::Normal(n, k, 2) : Padded::Normal(k, n, 2);
        const Padded c = Padded::Normal(m, n, 3), before = c.Copy();
        Gemm(kContext, transpose_a, transpose_b, 1.5, a.view(), b.view(), -0.5, c.view());
        Padded fresh(m, n);  // beta 0 must not let the NaN in c through
        Gemm(kContext, transpose_a, transpose_b, 1.5, a.view(), b.view(), 0.0, fresh.view());
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0, size = std::abs(before.view()(i, j));
            for (int64_t l = 0; l < k; ++l) {
              const double x = transpose_a ? a.view()(l, i) : a.view()(i, l);
              const double y = transpose_b ? b.view()(j, l) : b.view()(l, j);
              sum += 1.5 * x * y;
              size += 1.5 * std::abs(x * y);
            }
            const double tolerance = static_cast<double>(k + 4) * kEpsilon * size;
            ASSERT_NEAR(fresh.view()(i, j), sum, tolerance);
            ASSERT_NEAR(c.view()(i, j), sum - 0.5 * before.view()(i, j), tolerance);
          }
        }
        EXPECT_TRUE(c.PaddingIsUntouched() && fresh.PaddingIsUntouched());
      }
    }
  }
}

TEST(Linalg, ThreadsGiveTheSameProductToRounding) {
  const Padded a = Padded::Normal(300, 200, 1), b = Padded::Normal(200, 100, 2), one(300, 100), two(300, 100);
  Gemm(kContext, false, false, 1, a.view(), b.view(), 0, one.view());
  Gemm(Context{2, Isa::kPortable}, false, false, 1, a.view(), b.view(), 0, two.view());
  for (int64_t i = 0; i < 300; ++i)
    for (int64_t j = 0; j < 100; ++j) ASSERT_NEAR(one.view()(i, j), two.view()(i, j), 1e-12);
}

TEST(Linalg, GemmRefusesShapesThatDoNotFit) {
  const Padded a = Padded::Normal(2, 3, 1), b = Padded::Normal(3, 4, 2), c(2, 4);
  EXPECT_NO_THROW(Gemm(kContext, false, false, 1, a.view(), b.view(), 0, c.view()));
  EXPECT_THROW(Gemm(kContext, true, false, 1, a.view(), b.view(), 0, c.view()), Error);
  EXPECT_THROW(Gemm(kContext, false, true, 1, a.view(), b.view(), 0, c.view()), Error);
  EXPECT_THROW(Gemm(kContext, false, false, 1, a.view(), a.view(), 0, c.view()), Error);
  EXPECT_THROW(Gemm(kContext, false, false, 1, a.view(), b.view(), 0, a.view()), Error);
}

TEST(Linalg, GramAddsToTheUpperTriangleOnly) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {40, 33}, {200, 65}, {0, 3}}) {
    const Padded a = Padded::Normal(rows, cols, 4), c = Padded::Normal(cols, cols, 5);
    PoisonLower(c.view());
    const Padded before = c.Copy();
    AddGram(kContext, a.view(), c.view());
    for (int64_t i = 0; i < cols; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        if (j < i) {
          ASSERT_TRUE(std::isnan(c.view()(i, j)));
          continue;
        }
        double sum = before.view()(i, j), size = std::abs(sum);
        for (int64_t k = 0; k < rows; ++k) {
          sum += a.view()(k, i) * a.view()(k, j);
          size += std::abs(a.view()(k, i) * a.view()(k, j));
        }
        ASSERT_NEAR(c.view()(i, j), sum, static_cast<double>(rows + 2) * kEpsilon * size);
      }
    }
    EXPECT_TRUE(c.PaddingIsUntouched());
    SymmetrizeFromUpper(c.view());
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t j = 0; j < i; ++j) ASSERT_EQ(c.view()(i, j), c.view()(j, i));
  }
  EXPECT_THROW(AddGram(kContext, Padded::Normal(3, 4, 1).view(), Padded(3, 3).view()), Error);
}

TEST(Linalg, CholeskySolves) {
  for (const int64_t n : {1, 2, 7, 64, 129}) {
    for (const int64_t sides : {1, 5, 130}) {
      const Padded a = PositiveDefinite(n, 6), b = Padded::Normal(n, sides, 7), x = b.Copy(), factor = a.Copy();
      PoisonLower(factor.view());
      double rcond = kNan;
      ASSERT_TRUE(CholeskySolve(kContext, factor.view(), x.view(), &rcond));
      EXPECT_GT(rcond, 1e-3);
      EXPECT_LE(rcond, 1 + 1e-9);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < sides; ++j) {  // the residual is small compared with the terms of the sum
          double residual = -b.view()(i, j), size = std::abs(residual);
          for (int64_t k = 0; k < n; ++k) {
            residual += a.view()(i, k) * x.view()(k, j);
            size += std::abs(a.view()(i, k) * x.view()(k, j));
          }
          ASSERT_LE(std::abs(residual), 20 * static_cast<double>(n) * kEpsilon * size) << n << " " << sides;
        }
      }
      EXPECT_TRUE(x.PaddingIsUntouched() && factor.PaddingIsUntouched());
    }
  }
}

TEST(Linalg, TheConditionNumberIsThatOfTheMatrix) {
  Padded a(3, 3), b = Padded::Normal(3, 1, 1);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 3; ++j) a.view()(i, j) = i == j ? std::pow(10.0, -3.0 * static_cast<double>(i)) : 0.0;
  double rcond = kNan;
  ASSERT_TRUE(CholeskySolve(kContext, a.view(), b.view(), &rcond));
  EXPECT_NEAR(rcond, 1e-6, 1e-12);
  EXPECT_TRUE(CholeskySolve(kContext, PositiveDefinite(4, 1).view(), Padded::Normal(4, 1, 2).view(), nullptr));
}

TEST(Linalg, CholeskySaysWhenAMatrixIsNotPositiveDefinite) {
  const Padded indefinite = PositiveDefinite(5, 8);
  indefinite.view()(3, 3) = -1;
  EXPECT_FALSE(CholeskySolve(kContext, indefinite.view(), Padded::Normal(5, 2, 1).view(), nullptr));
  const Padded zero(4, 4);
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 4; ++j) zero.view()(i, j) = 0;
  EXPECT_FALSE(CholeskySolve(kContext, zero.view(), Padded::Normal(4, 2, 1).view(), nullptr));
  const Padded nan = PositiveDefinite(4, 1);
  nan.view()(1, 2) = kNan;
  EXPECT_THROW(CholeskySolve(kContext, nan.view(), Padded::Normal(4, 2, 1).view(), nullptr), Error);
  EXPECT_THROW(CholeskySolve(kContext, PositiveDefinite(4, 1).view(), Padded::Normal(3, 2, 1).view(), nullptr), Error);
  EXPECT_THROW(CholeskySolve(kContext, Padded(4, 3).view(), Padded::Normal(4, 2, 1).view(), nullptr), Error);
}

TEST(Linalg, SymmReadsTheUpperTriangleOnEitherSide) {
  for (const int64_t n : {1, 5, 40}) {
    const Padded a = PositiveDefinite(n, 3), full = a.Copy(), tall = Padded::Normal(n, 7, 4),
                 wide = Padded::Normal(7, n, 5), left(n, 7), right(7, n), left_expected(n, 7), right_expected(7, n);
    PoisonLower(a.view());
    Symm(kContext, Side::kLeft, a.view(), tall.view(), left.view());
    Symm(kContext, Side::kRight, a.view(), wide.view(), right.view());
    Gemm(kContext, false, false, 1.0, full.view(), tall.view(), 0.0, left_expected.view());
    Gemm(kContext, false, false, 1.0, wide.view(), full.view(), 0.0, right_expected.view());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < 7; ++j) {
        EXPECT_NEAR(left.view()(i, j), left_expected.view()(i, j), 1e-12 * static_cast<double>(n * n));
        EXPECT_NEAR(right.view()(j, i), right_expected.view()(j, i), 1e-12 * static_cast<double>(n * n));
      }
    }
    EXPECT_TRUE(left.PaddingIsUntouched() && right.PaddingIsUntouched());
  }
  EXPECT_THROW(Symm(kContext, Side::kLeft, Padded(3, 3).view(), Padded(2, 3).view(), Padded(2, 3).view()), Error);
  EXPECT_THROW(Symm(kContext, Side::kRight, Padded(3, 3).view(), Padded(3, 2).view(), Padded(3, 2).view()), Error);
}

TEST(Linalg, SymmetrizeCopiesTheUpperTriangle) {
  for (const int64_t n : {1, 31, 32, 33, 100}) {
    const Padded a = Padded::Normal(n, n, 6), upper = a.Copy();
    PoisonLower(a.view());
    SymmetrizeFromUpper(a.view());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) EXPECT_EQ(a.view()(i, j), upper.view()(std::min(i, j), std::max(i, j)));
    EXPECT_TRUE(a.PaddingIsUntouched());
  }
}

// x a = b, of any a that is far enough from singular; otherwise b stays.
TEST(Linalg, SolvesFromTheRightUnlessSingular) {
  for (const int64_t n : {1, 7, 40}) {
    const Padded a = Padded::Normal(n, n, 7), x = Padded::Normal(5, n, 8), b(5, n);
    Gemm(kContext, false, false, 1.0, x.view(), a.view(), 0.0, b.view());
    const double rcond = SolveFromRight(kContext, a.Copy().view(), b.view(), 1e-12);
    EXPECT_GT(rcond, 1e-5);
    EXPECT_LE(rcond, 1.0);
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t j = 0; j < n; ++j) EXPECT_NEAR(b.view()(i, j), x.view()(i, j), 100 * n * kEpsilon / rcond);
    EXPECT_TRUE(b.PaddingIsUntouched());
  }
  const Padded singular = Padded::Normal(4, 4, 9), b = Padded::Normal(3, 4, 10), kept = b.Copy();
  for (int64_t j = 0; j < 4; ++j) singular.view()(3, j) = 2 * singular.view()(1, j);
  EXPECT_LT(SolveFromRight(kContext, singular.view(), b.view(), 1e-12), 1e-12);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(b.view()(i, j), kept.view()(i, j));
  const Padded poisoned = Padded::Normal(4, 4, 11);
  poisoned.view()(2, 0) = kNan;
  EXPECT_THROW(SolveFromRight(kContext, poisoned.view(), b.view(), 0), Error);
}

}  // namespace
}  // namespace shiftrt::linalg
