// SPDX-License-Identifier: Apache-2.0
#include "kernels/layernorm.h"

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Padded;
using test::Stored;

class LayerNormTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(LayerNormTest);

Padded Around(double mean, int64_t rows, int64_t cols, uint64_t seed, double size) {
  Padded x = Padded::Normal(rows, cols, seed, size);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) x(i, j) = static_cast<float>(x(i, j) + mean);
  return x;
}

struct Moments {
  double mean = 0, scale = 0;
};
Moments MomentsOf(const Padded& x, int64_t i, double eps) {
  const auto n = static_cast<double>(x.cols());
  double sum = 0, squares = 0;
  for (int64_t j = 0; j < x.cols(); ++j) sum += x(i, j);
  for (int64_t j = 0; j < x.cols(); ++j) squares += (x(i, j) - sum / n) * (x(i, j) - sum / n);
  return {sum / n, 1 / std::sqrt(squares / n + eps)};
}

std::vector<double> GainsWith(const Stored& weight, float offset) {
  std::vector<double> sums;
  for (const double w : weight.values) sums.push_back(static_cast<float>(offset + static_cast<float>(w)));
  return sums;
}

TEST_P(LayerNormTest, AgreesWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const int64_t n : {2, 7, 64, 300, 5120}) {
      for (const double mean : {0.0, 50.0}) {
        for (const float offset : {0.0f, 1.0f}) {
          const int64_t tokens = 19;
          const Padded x = Around(mean, tokens, n, 1, 2), out(tokens, n), plain(tokens, n), in_place = x.Copy();
          const Stored weight = Stored::Normal(dtype, {n}, 2), bias = Stored::Normal(dtype, {n}, 3);
          LayerNorm(context_, x.view(), weight.view, bias.view, 1e-5f, out.view(), offset);
          LayerNorm(context_, x.view(), weight.view, {}, 1e-5f, plain.view(), offset);
          const std::vector<double> gains = GainsWith(weight, offset);
          for (int64_t i = 0; i < tokens; ++i) {
            const auto [middle, scale] = MomentsOf(x, i, 1e-5f);
            for (int64_t j = 0; j < n; ++j) {
              const double product = (x(i, j) - middle) * scale * gains[j];
              ASSERT_NEAR(plain(i, j), product, 8 * test::kUnit * std::abs(product) + 1e-12) << i << ", " << j;
              ASSERT_NEAR(out(i, j), product + bias.values[j],
                          8 * test::kUnit * (std::abs(product) + std::abs(bias.values[j])))
                  << i << ", " << j;
            }
          }
          EXPECT_TRUE(out.PaddingIsUntouched() && plain.PaddingIsUntouched());
          LayerNorm(On(3), in_place.view(), weight.view, bias.view, 1e-5f, in_place.view(), offset);
          EXPECT_TRUE(test::Identical(out, in_place));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(LayerNormTest, GradientAgreesWithFloat64) {
  for (const int64_t tokens : {1, 33, 70}) {
    for (const int64_t n : {2, 7, 64, 300}) {
      for (const double mean : {0.0, 10.0}) {
        for (const float offset : {0.0f, 1.0f}) {
          const Padded x = Around(mean, tokens, n, 1, 2), dy = Padded::Normal(tokens, n, 3),
                       before = Padded::Normal(tokens, n, 4), dx(tokens, n), sum = before.Copy(),
                       row = Padded::Normal(1, n, 5), dweight = row.Copy(), dbias = row.Copy(), threaded = dy.Copy(),
                       threaded_weight = row.Copy(), threaded_bias = row.Copy();
          const Stored weight = Stored::Normal(DType::kBFloat16, {n}, 2);
          const NormGradient norm{x.view(), weight.view, 1e-5f, offset};
          LayerNormGradient(context_, norm, dy.view(), false, dx.view(), dweight.view(), dbias.view());
          LayerNormGradient(context_, norm, dy.view(), true, sum.view());
          const std::vector<double> gains = GainsWith(weight, offset);
          std::vector<test::Exact> weights(n), biases(n);
          for (int64_t i = 0; i < tokens; ++i) {
            const auto [middle, scale] = MomentsOf(x, i, 1e-5f);
            double all = 0, along = 0, size = 0;
            for (int64_t j = 0; j < n; ++j) {
              const double g = gains[j] * dy(i, j), u = (x(i, j) - middle) * scale;
              all += g / static_cast<double>(n);
              along += g * u / static_cast<double>(n);
              size += std::abs(g) * (1 + std::abs(u)) / static_cast<double>(n);
              weights[j].Add(u * dy(i, j));
              biases[j].Add(dy(i, j));
            }
            for (int64_t j = 0; j < n; ++j) {
              const double u = (x(i, j) - middle) * scale;
              const double expected = scale * (gains[j] * dy(i, j) - all - u * along);
              const double bound = 4 * test::kUnit * scale * (std::abs(gains[j] * dy(i, j)) + size * (1 + std::abs(u)));
              ASSERT_NEAR(dx(i, j), expected, bound);
              ASSERT_NEAR(sum(i, j), before(i, j) + expected, bound + 4 * test::kUnit * std::abs(before(i, j)));
            }
          }
          for (int64_t j = 0; j < n; ++j) {
            for (test::Exact* exact : {&weights[j], &biases[j]}) exact->Add(row(0, j));
            ASSERT_NEAR(dweight(0, j), weights[j].value, test::SumTolerance(tokens + 4, weights[j].size));
            ASSERT_NEAR(dbias(0, j), biases[j].value, test::SumTolerance(tokens + 4, biases[j].size));
          }
          EXPECT_TRUE(dx.PaddingIsUntouched() && dweight.PaddingIsUntouched() && dbias.PaddingIsUntouched());
          LayerNormGradient(On(3), norm, threaded.view(), false, threaded.view(), threaded_weight.view(),
                            threaded_bias.view());
          EXPECT_TRUE(test::Identical(dx, threaded));
          EXPECT_TRUE(test::Identical(dweight, threaded_weight) && test::Identical(dbias, threaded_bias));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(LayerNormTest, RefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 8, 1), out(2, 8), row(1, 8);
  const Stored weight = Stored::Normal(DType::kFloat32, {8}, 2), half = Stored::Normal(DType::kFloat32, {4}, 2);
  EXPECT_THROW(LayerNorm(context_, x.view(), half.view, {}, 1e-6f, out.view()), Error);
  EXPECT_THROW(LayerNorm(context_, x.view(), weight.view, half.view, 1e-6f, out.view()), Error);
  EXPECT_THROW(LayerNorm(context_, x.view(), weight.view, {}, 1e-6f, out.view().Cols(0, 7)), Error);
  const NormGradient norm{x.view(), weight.view, 1e-6f};
  EXPECT_THROW(LayerNormGradient(context_, norm, x.view().Cols(0, 7), false, out.view()), Error);
  EXPECT_THROW(LayerNormGradient(context_, norm, x.view(), false, out.view(), row.view().Cols(0, 7)), Error);
  EXPECT_THROW(LayerNormGradient(context_, norm, x.view(), false, out.view(), {}, row.view().Cols(0, 7)), Error);
}

}  // namespace
}  // namespace shiftrt
