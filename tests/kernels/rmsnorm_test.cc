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

}  // namespace
}  // namespace shiftrt
