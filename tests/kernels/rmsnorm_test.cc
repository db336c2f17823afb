// SPDX-License-Identifier: Apache-2.0
#include "kernels/rmsnorm.h"

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Padded;
using test::Stored;

class RmsNormTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(RmsNormTest);

// Checks that row i of `out` is the norm of columns [at, at + weight) of row i of `x`. The tolerance is three roundings
// and those of the square root.
void ExpectNormed(const Padded& x, const Padded& out, int64_t i, int64_t at, const std::vector<double>& weight,
                  double eps) {
  const auto n = static_cast<int64_t>(weight.size());
  double squares = 0;
  for (int64_t j = 0; j < n; ++j) squares += static_cast<double>(x(i, at + j)) * x(i, at + j);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  for (int64_t j = 0; j < n; ++j) {
    const double expected = x(i, at + j) * scale * weight[j];
    ASSERT_NEAR(out(i, at + j), expected, 8 * test::kUnit * std::abs(expected)) << "at " << i << ", " << at + j;
  }
}

TEST_P(RmsNormTest, AgreesWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const int64_t tokens : {1, 2, 33}) {
      for (const int64_t n : {1, 7, 64, 300, 5120}) {
        for (const double size : {1e-4, 1.0, 1e4}) {
          const Padded x = Padded::Normal(tokens, n, 1, size), out(tokens, n);
          const Stored weight = Stored::Normal(dtype, {n}, 2);
          RmsNorm(context_, x.view(), weight.view, 1e-5f, out.view());
          for (int64_t i = 0; i < tokens; ++i) ExpectNormed(x, out, i, 0, weight.values, 1e-5f);
          EXPECT_TRUE(out.PaddingIsUntouched());
          const Padded in_place = x.Copy();
          RmsNorm(On(3), in_place.view(), weight.view, 1e-5f, in_place.view());
          EXPECT_TRUE(test::Identical(out, in_place));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// 1 + weight in float32, as in Gemma2RMSNorm of transformers.
TEST_P(RmsNormTest, AnOffsetIsAddedToTheWeights) {
  for (const DType dtype : test::kStoredTypes) {
    const Padded x = Padded::Normal(3, 48, 1), out(3, 48), heads = x.Copy();
    const Stored weight = Stored::Normal(dtype, {48}, 2, 0.3), head_weight = Stored::Normal(dtype, {16}, 3, 0.3);
    const auto with_one = [](const Stored& stored) {
      std::vector<double> sums;
      for (const double w : stored.values) sums.push_back(static_cast<float>(1 + static_cast<float>(w)));
      return sums;
    };
    RmsNorm(context_, x.view(), weight.view, 1e-6f, out.view(), 1);
    RmsNormHeads(context_, heads.view(), 16, head_weight.view, 1e-6f, 1);
    for (int64_t i = 0; i < 3; ++i) {
      ExpectNormed(x, out, i, 0, with_one(weight), 1e-6);
      for (int64_t h = 0; h < 3; ++h) ExpectNormed(x, heads, i, 16 * h, with_one(head_weight), 1e-6);
    }
  }
}

TEST_P(RmsNormTest, RowsOfZerosAndMassiveActivations) {
  const int64_t n = 64;
  const Padded x = Padded::Normal(2, n, 1, 0.1), out(2, n);
  for (int64_t j = 0; j < n; ++j) x(0, j) = 0;
  x(1, 17) = 30000;
  const Stored weight = Stored::Normal(DType::kFloat32, {n}, 2);
  RmsNorm(context_, x.view(), weight.view, 1e-6f, out.view());
  for (int64_t j = 0; j < n; ++j) EXPECT_EQ(out(0, j), 0);
  ExpectNormed(x, out, 1, 0, weight.values, 1e-6f);
}

TEST_P(RmsNormTest, HeadByHead) {
  for (const int64_t head_dim : {4, 6, 64, 128}) {
    for (const int64_t heads : {1, 3, 7}) {
      const Padded x = Padded::Normal(19, heads * head_dim, 1), out = x.Copy(), threaded = x.Copy();
      const Stored weight = Stored::Normal(DType::kBFloat16, {head_dim}, 2);
      RmsNormHeads(context_, out.view(), head_dim, weight.view, 1e-6f);
      for (int64_t i = 0; i < x.rows(); ++i)
        for (int64_t h = 0; h < heads; ++h) ExpectNormed(x, out, i, h * head_dim, weight.values, 1e-6f);
      EXPECT_TRUE(out.PaddingIsUntouched());
      RmsNormHeads(On(2), threaded.view(), head_dim, weight.view, 1e-6f);
      EXPECT_TRUE(test::Identical(out, threaded));
    }
  }
}

TEST_P(RmsNormTest, RefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 8, 1), out(2, 8);
  const Stored weight = Stored::Normal(DType::kFloat32, {8}, 2), half = Stored::Normal(DType::kFloat32, {3}, 2),
               wide = Stored::Normal(DType::kFloat64, {8}, 2);
  EXPECT_THROW(RmsNorm(context_, x.view(), half.view, 1e-6f, out.view()), Error);
  EXPECT_THROW(RmsNorm(context_, x.view(), wide.view, 1e-6f, out.view()), Error);
  EXPECT_THROW(RmsNorm(context_, x.view(), weight.view, 1e-6f, out.view().Cols(0, 7)), Error);
  EXPECT_THROW(RmsNormHeads(context_, x.view(), 3, half.view, 1e-6f), Error);
  EXPECT_THROW(RmsNormHeads(context_, x.view(), 4, half.view, 1e-6f), Error);
  EXPECT_THROW(RmsNormHeads(context_, x.view(), 0, half.view, 1e-6f), Error);
}

// The gradients in float64 of one norm of row i, columns [at, at + n), checked against dx and added to dweight.
void ExpectNormGradient(const Padded& x, const Padded& dy, const Padded* before, const Padded& dx, int64_t i,
                        int64_t at, const std::vector<double>& weight, double eps, std::vector<test::Exact>& dweight) {
  const auto n = static_cast<int64_t>(weight.size());
  double squares = 0;
  test::Exact product;
  for (int64_t j = 0; j < n; ++j) {
    squares += static_cast<double>(x(i, at + j)) * x(i, at + j);
    product.Add(weight[j] * dy(i, at + j) * x(i, at + j));
  }
  const double mean = 1 / static_cast<double>(n), r = 1 / std::sqrt(squares * mean + eps);
  for (int64_t j = 0; j < n; ++j) {
    const double pull = r * r * r * x(i, at + j) * mean;
    test::Exact expected;
    expected.Add(r * weight[j] * dy(i, at + j));
    expected.Add(-pull * product.value);
    if (before != nullptr) expected.Add((*before)(i, at + j));
    // The terms of the sum of products are rounded to float32 once.
    ASSERT_NEAR(dx(i, at + j), expected.value,
                10 * test::kUnit * expected.size + 2 * test::kUnit * std::abs(pull) * product.size + 1e-44)
        << "at " << i << ", " << at + j;
    dweight[j].Add(r * x(i, at + j) * dy(i, at + j));
  }
}

void ExpectWeightGradient(const std::vector<test::Exact>& expected, int64_t rows, const Padded& before,
                          const Padded& dweight) {
  for (size_t j = 0; j < expected.size(); ++j) {
    test::Exact sum = expected[j];
    sum.Add(before(0, static_cast<int64_t>(j)));
    ASSERT_NEAR(dweight(0, static_cast<int64_t>(j)), sum.value, test::SumTolerance(rows + 4, sum.size)) << j;
  }
  EXPECT_TRUE(dweight.PaddingIsUntouched());
}

std::vector<double> Offset(const Stored& weight, float offset) {
  std::vector<double> sums;
  for (const double w : weight.values) sums.push_back(static_cast<float>(offset + static_cast<float>(w)));
  return sums;
}

TEST_P(RmsNormTest, GradientAgreesWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const int64_t tokens : {1, 2, 33, 70}) {
      for (const int64_t n : {1, 7, 64, 300}) {
        for (const double size : {1e-4, 1.0, 1e4}) {
          for (const float offset : {0.0f, 1.0f}) {
            const Padded x = Padded::Normal(tokens, n, 1, size), dy = Padded::Normal(tokens, n, 3),
                         before = Padded::Normal(tokens, n, 4), dx(tokens, n), sum = before.Copy(),
                         weights_before = Padded::Normal(1, n, 5), dweight = weights_before.Copy(),
                         threaded = dy.Copy(), threaded_weight = weights_before.Copy();
            const Stored weight = Stored::Normal(dtype, {n}, 2);
            const NormGradient norm{x.view(), weight.view, 1e-5f, offset};
            RmsNormGradient(context_, norm, dy.view(), false, dx.view(), dweight.view());
            RmsNormGradient(context_, norm, dy.view(), true, sum.view());
            std::vector<test::Exact> expected(n), unused(n);
            for (int64_t i = 0; i < tokens; ++i) {
              ExpectNormGradient(x, dy, nullptr, dx, i, 0, Offset(weight, offset), 1e-5f, expected);
              ExpectNormGradient(x, dy, &before, sum, i, 0, Offset(weight, offset), 1e-5f, unused);
            }
            ExpectWeightGradient(expected, tokens, weights_before, dweight);
            EXPECT_TRUE(dx.PaddingIsUntouched() && sum.PaddingIsUntouched());
            RmsNormGradient(On(3), norm, threaded.view(), false, threaded.view(), threaded_weight.view());
            EXPECT_TRUE(test::Identical(dx, threaded));
            EXPECT_TRUE(test::Identical(dweight, threaded_weight));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(RmsNormTest, GradientHeadByHead) {
  for (const int64_t head_dim : {4, 6, 64}) {
    for (const int64_t heads : {1, 3}) {
      const int64_t tokens = 37;
      const Padded x = Padded::Normal(tokens, heads * head_dim, 1), dy = Padded::Normal(tokens, heads * head_dim, 3),
                   dx(tokens, heads * head_dim), before = Padded::Normal(1, head_dim, 4), dweight = before.Copy(),
                   in_place = dy.Copy(), threaded_weight = before.Copy();
      const Stored weight = Stored::Normal(DType::kBFloat16, {head_dim}, 2);
      const NormGradient norm{x.view(), weight.view, 1e-6f};
      RmsNormHeadsGradient(context_, norm, head_dim, dy.view(), dx.view(), dweight.view());
      std::vector<test::Exact> expected(head_dim);
      for (int64_t i = 0; i < tokens; ++i)
        for (int64_t h = 0; h < heads; ++h)
          ExpectNormGradient(x, dy, nullptr, dx, i, h * head_dim, weight.values, 1e-6f, expected);
      ExpectWeightGradient(expected, tokens * heads, before, dweight);
      RmsNormHeadsGradient(On(2), norm, head_dim, in_place.view(), in_place.view(), threaded_weight.view());
      EXPECT_TRUE(test::Identical(dx, in_place));
      EXPECT_TRUE(test::Identical(dweight, threaded_weight));
    }
  }
}

TEST_P(RmsNormTest, GradientRefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 8, 1), dx(2, 8), dweight(1, 8);
  const Stored weight = Stored::Normal(DType::kFloat32, {8}, 2), half = Stored::Normal(DType::kFloat32, {4}, 2);
  const NormGradient norm{x.view(), weight.view, 1e-6f}, heads{x.view(), half.view, 1e-6f};
  EXPECT_THROW(RmsNormGradient(context_, heads, x.view(), false, dx.view()), Error);
  EXPECT_THROW(RmsNormGradient(context_, norm, x.view().Cols(0, 7), false, dx.view()), Error);
  EXPECT_THROW(RmsNormGradient(context_, norm, x.view(), false, dx.view().Rows(0, 1)), Error);
  EXPECT_THROW(RmsNormGradient(context_, norm, x.view(), false, dx.view(), dweight.view().Cols(0, 7)), Error);
  EXPECT_THROW(RmsNormHeadsGradient(context_, heads, 4, x.view(), dx.view(), dweight.view()), Error);
  EXPECT_THROW(RmsNormHeadsGradient(context_, heads, 8, x.view(), dx.view()), Error);
}

}  // namespace
}  // namespace shiftrt
