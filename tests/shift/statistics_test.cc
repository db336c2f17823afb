// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/statistics.h"

#include <limits>

#include "runtime/check.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

using test::Accumulated;
using test::MakeTokens;
using test::Tokens;

// Largest difference of two Grams or crosses, each element against the norms of the columns it is the product of.
double LargestDifference(const Matrix<double>& a, const Matrix<double>& b, const std::vector<double>& left,
                         const std::vector<double>& right) {
  double largest = 0;
  for (int64_t i = 0; i < a.rows(); ++i)
    for (int64_t j = 0; j < a.cols(); ++j)
      largest = std::max(largest, std::abs(a(i, j) - b(i, j)) / std::sqrt(left[i] * right[j]));
  return largest;
}

void ExpectSame(const RidgeSums& a, const RidgeSums& b) {
  EXPECT_EQ(a.tokens(), b.tokens());
  const Matrix<double> gram_a = a.Gram(), gram_b = b.Gram();
  std::vector<double> inputs, updates(a.hidden(), a.DeltaSquares());
  for (int64_t i = 0; i <= a.hidden(); ++i) inputs.push_back(gram_a(i, i));
  EXPECT_LE(LargestDifference(gram_a, gram_b, inputs, inputs), 1e-12);
  EXPECT_LE(LargestDifference(a.Cross(), b.Cross(), inputs, updates), 1e-12);
  EXPECT_NEAR(a.DeltaSquares(), b.DeltaSquares(), 1e-12 * a.DeltaSquares());
}

TEST(RidgeSums, AnyPartitionIntoChunksGivesTheSameSums) {
  const Tokens tokens = MakeTokens(1500, true, 5);
  const RidgeSums whole = Accumulated(tokens);
  for (const int64_t chunk : {1, 7, 100, 511, 513}) {
    RidgeSums parts(test::kHidden);
    for (int64_t first = 0; first < 1500; first += chunk) {
      const int64_t rows = std::min(chunk, 1500 - first);
      parts.Add(Context(), tokens.h.view().Rows(first, rows), tokens.delta.view().Rows(first, rows));
    }
    ExpectSame(whole, parts);
  }
}

TEST(RidgeSums, Adds) {
  const Tokens tokens = MakeTokens(300, true, 6);
  RidgeSums first(test::kHidden), second(test::kHidden);
  first.Add(Context(), tokens.h.view().Rows(0, 120), tokens.delta.view().Rows(0, 120));
  second.Add(Context(), tokens.h.view().Rows(120, 180), tokens.delta.view().Rows(120, 180));
  first += second;
  ExpectSame(Accumulated(tokens), first);
}

TEST(RidgeSums, HoldsTheAugmentedProducts) {
  const Tokens tokens = MakeTokens(50, true, 7);
  const RidgeSums sums = Accumulated(tokens);
  const int64_t d = test::kHidden;
  const Matrix<double> gram = sums.Gram();
  double cross = 0, column = 0, update = 0, squares = 0;
  for (int64_t t = 0; t < 50; ++t) {
    cross += static_cast<double>(tokens.h(t, 3)) * tokens.delta(t, 2);
    column += tokens.h(t, 3);
    update += tokens.delta(t, 2);
    for (int64_t j = 0; j < d; ++j) squares += static_cast<double>(tokens.delta(t, j)) * tokens.delta(t, j);
  }
  EXPECT_DOUBLE_EQ(gram(d, d), 50.0);
  EXPECT_NEAR(gram(3, d), column, 1e-12 * column);
  EXPECT_EQ(gram(3, d), gram(d, 3));
  EXPECT_NEAR(sums.Cross()(3, 2), cross, 1e-12 * std::abs(cross));
  EXPECT_NEAR(sums.Cross()(d, 2), update, 1e-12 * std::abs(update));
  EXPECT_NEAR(sums.DeltaSquares(), squares, 1e-12 * squares);
}

// The raw Gram holds 1e6 N in the massive coordinate, the centred one 3e3 N: nothing of what is left may be lost.
TEST(RidgeSums, CentresMassiveActivationsAccurately) {
  const Tokens tokens = MakeTokens(400, true, 8);
  const RidgeSums sums = Accumulated(tokens);
  const auto [gram, cross] = test::Centered(sums);
  const auto mean = [](const Matrix<float>& m, int64_t column) {
    double sum = 0;
    for (int64_t i = 0; i < m.rows(); ++i) sum += m(i, column);
    return sum / static_cast<double>(m.rows());
  };
  for (int64_t i = 0; i < test::kHidden; ++i) {
    for (int64_t j = 0; j < test::kHidden; ++j) {
      double g = 0, c = 0, g_scale = 0, c_scale = 0;
      for (int64_t t = 0; t < 400; ++t) {
        const double hi = tokens.h(t, i) - mean(tokens.h, i), hj = tokens.h(t, j) - mean(tokens.h, j),
                     dj = tokens.delta(t, j) - mean(tokens.delta, j);
        g += hi * hj;
        c += hi * dj;
        g_scale += std::abs(hi * hj);
        c_scale += std::abs(hi * dj);
      }
      EXPECT_NEAR(gram(i, j), g, 1e-11 * g_scale);
      EXPECT_NEAR(cross(i, j), c, 1e-11 * c_scale);
    }
  }
}

TEST(RidgeSums, NamesTheRowThatIsNotFinite) {
  Tokens tokens = MakeTokens(600, false, 9);
  tokens.delta(577, 4) = std::numeric_limits<float>::infinity();
  try {
    Accumulated(tokens);
    FAIL() << "infinity was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("row 577 of the block's update"), std::string::npos) << error.what();
  }
  tokens.h(3, 0) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(Accumulated(tokens), Error);
}

TEST(RidgeSums, RefusesAnotherHiddenSize) {
  RidgeSums sums(4);
  EXPECT_THROW(sums.Add(Context(), Matrix<float>::Zeros(2, 5).view(), Matrix<float>::Zeros(2, 5).view()), Error);
  EXPECT_THROW(sums += RidgeSums(5), Error);
}

TEST(InfluenceStatistics, IsOneMinusTheMeanCosine) {
  Matrix<float> in = Matrix<float>::Zeros(3, 2), out = Matrix<float>::Zeros(3, 2);
  in(0, 0) = 2, out(0, 0) = 5;                  // cosine 1, whatever the length
  in(1, 0) = 1, out(1, 1) = 1;                  // 0
  in(2, 0) = 3, out(2, 0) = -3, out(2, 1) = 4;  // -0.6
  std::vector<RowProducts> products(3);
  ComputeRowProducts(Context(), in.view(), out.view(), products);
  const std::span<const RowProducts> all(products);
  InfluenceStatistics statistics(2);
  statistics.Add(0, all);
  statistics.Add(1, all.first(1));
  EXPECT_NEAR(statistics.Scores()[0], 1 - 0.4 / 3, 1e-12);
  EXPECT_NEAR(statistics.Scores()[1], 0.0, 1e-12);
  EXPECT_THROW(InfluenceStatistics(1).Scores(), Error);
}

}  // namespace
}  // namespace shiftrt
