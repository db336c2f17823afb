// SPDX-License-Identifier: Apache-2.0
// Products of operands that are rounded to bfloat16.
#include <algorithm>

#include "kernels/cpu/simd_body.h"
#include "kernels/matmul.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;
using test::Stored;
using test::SumTolerance;

class RoundedProductTest : public testing::TestWithParam<Isa> {
 protected:
  static Context On(int threads) {
    Context context{threads, GetParam()};
    context.products = Products::kBFloat16;
    return context;
  }
  const Context context_ = On(1);
};

std::vector<Isa> IsasWithRoundedProducts() {
  std::vector<Isa> isas;
  for (const auto& [isa, emulated] :
       {std::pair{Isa::kAvx512BFloat16, SHIFTRT_EMULATED_AVX512BF16}, {Isa::kAmx, SHIFTRT_EMULATED_AMX}})
    if (isa <= BestIsa() || emulated) isas.push_back(isa);
  return isas;
}

// On any CPU there is at least one of the two, or its emulation.
INSTANTIATE_TEST_SUITE_P(Isas, RoundedProductTest, testing::ValuesIn(IsasWithRoundedProducts()),
                         [](const auto& info) { return std::string(Name(info.param)); });

double Nearest(double value) { return static_cast<float>(BFloat16(static_cast<float>(value))); }

Padded NearestOf(const Padded& x) {
  Padded rounded = x.Copy();
  for (int64_t i = 0; i < x.rows(); ++i)
    for (int64_t j = 0; j < x.cols(); ++j) rounded(i, j) = static_cast<float>(Nearest(x(i, j)));
  return rounded;
}

struct RoundedShape {
  int64_t m, n, k;
};

// Around the heights and widths of the register tiles, with odd depths and more than one block of each side.
std::vector<RoundedShape> RoundedShapes() {
  std::vector<RoundedShape> shapes;
  for (const int64_t m : {5, 11, 12, 13, 16, 33})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {15, 31}, {16, 32}, {33, 33}, {65, 600}, {31, 1155}})
      shapes.push_back({m, n, k});
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{33, 300}, {300, 33}}) shapes.push_back({770, n, k});
  return shapes;
}

// Expects y to be the exact product of the rounded operands x (m, k) and w (n, k), added to `before` if there is one.
void ExpectRoundedProduct(const Padded& x, const std::vector<double>& w, const Padded* before, const Padded& y) {
  for (int64_t i = 0; i < y.rows(); ++i) {
    for (int64_t j = 0; j < y.cols(); ++j) {
      Exact exact;
      for (int64_t k = 0; k < x.cols(); ++k) exact.Add(Nearest(x(i, k)) * Nearest(w[j * x.cols() + k]));
      if (before != nullptr) exact.Add((*before)(i, j));
      ASSERT_NEAR(y(i, j), exact.value, SumTolerance(x.cols() + 2, exact.size)) << "at " << i << ", " << j;
    }
  }
  ASSERT_TRUE(y.PaddingIsUntouched());
}

Padded TurnedOf(const Padded& x) {
  Padded turned(x.cols(), x.rows());
  for (int64_t i = 0; i < x.rows(); ++i)
    for (int64_t j = 0; j < x.cols(); ++j) turned(j, i) = x(i, j);
  return turned;
}

std::vector<double> Values(const Padded& x) {
  std::vector<double> values;
  for (int64_t i = 0; i < x.rows(); ++i) values.insert(values.end(), x.view().row(i), x.view().row(i) + x.cols());
  return values;
}

TEST_P(RoundedProductTest, AgreesWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const auto& [m, n, k] : RoundedShapes()) {
      SCOPED_TRACE(fmt::format("{} m {} n {} k {}", Name(dtype), m, n, k));
      const Padded x = Padded::Normal(m, k, 1), before = Padded::Normal(m, n, 4, 10), fresh(m, n), sum = before.Copy();
      const Stored w = Stored::Normal(dtype, {n, k}, 2);
      MatMul(context_, x.view(), w.view, {}, false, fresh.view());
      ExpectRoundedProduct(x, w.values, nullptr, fresh);
      MatMul(On(3), x.view(), w.view, {}, true, sum.view());
      ExpectRoundedProduct(x, w.values, &before, sum);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RoundedProductTest, GradientsAgreeWithFloat64) {
  for (const auto& [m, n, k] : RoundedShapes()) {
    SCOPED_TRACE(fmt::format("m {} n {} k {}", m, n, k));
    const Padded dy = Padded::Normal(m, k, 1), w = Padded::Normal(k, n, 2), dx(m, n), right(m, n);
    MatMulInputGradient(context_, dy.view(), Stored(DType::kFloat32, {k, n}, Values(w)).view, false, dx.view());
    ExpectRoundedProduct(dy, Values(TurnedOf(w)), nullptr, dx);
    MatMulRight(context_, dy.view(), w.view(), false, right.view());
    EXPECT_TRUE(test::Identical(dx, right));

    const Padded out = Padded::Normal(k, m, 5), in = Padded::Normal(k, n, 6), before = Padded::Normal(m, n, 7, 10),
                 dw = before.Copy(), threaded = before.Copy();
    MatMulWeightGradient(context_, out.view(), in.view(), dw.view());
    ExpectRoundedProduct(TurnedOf(out), Values(TurnedOf(in)), &before, dw);
    MatMulWeightGradient(On(3), out.view(), in.view(), threaded.view());
    EXPECT_TRUE(test::Identical(dw, threaded));
    if (HasFatalFailure()) return;
  }
}

// Ties go to even. Numbers below 2^-126 count as 0 or as they are.
TEST_P(RoundedProductTest, RoundsToNearest) {
  const int64_t m = 40, n = 35, k = 70;
  Random random(3);
  Padded x(m, k);
  std::vector<double> w(n * k);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < k; ++j)
      x(i, j) = std::ldexp(1 + static_cast<float>(random.Below(512)) / 512, static_cast<int>(random.Below(40)) - 20);
  for (double& value : w) value = 1 + static_cast<double>(random.Below(512)) / 512;
  const Stored exact(DType::kFloat32, {n, k}, w);
  for (double& value : w) value = Nearest(value);
  const Stored rounded(DType::kFloat32, {n, k}, w), stored(DType::kBFloat16, {n, k}, w);
  const Padded a(m, n), b(m, n), c(m, n);
  MatMul(context_, x.view(), exact.view, {}, false, a.view());
  MatMul(context_, NearestOf(x).view(), rounded.view, {}, false, b.view());
  MatMul(context_, NearestOf(x).view(), stored.view, {}, false, c.view());
  EXPECT_TRUE(test::Identical(a, b));
  EXPECT_TRUE(test::Identical(a, c));
}

TEST_P(RoundedProductTest, TheOtherRowsDoNotChangeABit) {
  const int64_t n = 70, k = 600;
  const Padded x = Padded::Normal(300, k, 1), all(300, n);
  const Stored w = Stored::Normal(DType::kFloat32, {n, k}, 2);
  MatMul(context_, x.view(), w.view, {}, false, all.view());
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 5}, {3, 16}, {7, 17}, {250, 33}, {290, 10}}) {
    const Padded some(rows, n);
    MatMul(context_, x.view().Rows(first, rows), w.view, {}, false, some.view());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < n; ++j) ASSERT_EQ(some(i, j), all(first + i, j)) << first << " " << rows;
  }
}

TEST_P(RoundedProductTest, ValuesThatAreNotFiniteStayInTheirRowsAndColumns) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : test::kStoredTypes) {
    const int64_t m = 20, n = 35, k = 70;
    Padded x = Padded::Normal(m, k, 1);
    Stored w = Stored::Normal(dtype, {n, k}, 2);
    std::vector<double> values = w.values;
    const Padded plain(m, n), y(m, n);
    MatMul(context_, x.view(), w.view, {}, false, plain.view());
    x(3, 5) = infinity;
    x(5, 33) = test::kNan;
    x(6, 0) = std::bit_cast<float>(0x7f800001u);  // a NaN whose upper half is that of infinity
    x(7, 0) = std::bit_cast<float>(0x7fffffffu);
    values[8 * k + 2] = infinity;
    w = Stored(dtype, {n, k}, values);
    MatMul(context_, x.view(), w.view, {}, false, y.view());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        SCOPED_TRACE(fmt::format("{} at {}, {}", Name(dtype), i, j));
        if (i >= 5 && i <= 7) {
          ASSERT_TRUE(std::isnan(y(i, j)));
        } else if (i == 3 || j == 8) {
          ASSERT_FALSE(std::isfinite(y(i, j)));
        } else {
          ASSERT_EQ(y(i, j), plain(i, j));
        }
      }
    }
  }
}

// Up to four rows read the weights once for all of them, in float32.
TEST_P(RoundedProductTest, OfFewRowsAreInFloat32) {
  const Padded x = Padded::Normal(4, 70, 1), rounded(4, 33), plain(4, 33);
  const Stored w = Stored::Normal(DType::kFloat32, {33, 70}, 2);
  MatMul(context_, x.view(), w.view, {}, false, rounded.view());
  MatMul({1, GetParam()}, x.view(), w.view, {}, false, plain.view());
  EXPECT_TRUE(test::Identical(rounded, plain));
}

}  // namespace
}  // namespace shiftrt
