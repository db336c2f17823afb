// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/tsne.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/check.h"
#include "runtime/random.h"

namespace shiftrt {
namespace {

// Two groups of as many points about centres `apart` from each other along every coordinate.
Matrix<double> TwoGroups(int64_t each, int64_t width, double apart) {
  Random random(5);
  Matrix<double> points(2 * each, width);
  for (int64_t i = 0; i < 2 * each; ++i)
    for (int64_t j = 0; j < width; ++j) points(i, j) = random.Normal() + (i < each ? 0 : apart);
  return points;
}

double Distance(const Matrix<double>& y, int64_t i, int64_t j) {
  return std::hypot(y(i, 0) - y(j, 0), y(i, 1) - y(j, 1));
}

// The share of points whose nearest neighbour is of their own group.
double NearOwnGroup(const Matrix<double>& y, int64_t each) {
  int64_t own = 0;
  for (int64_t i = 0; i < y.rows(); ++i) {
    int64_t nearest = i == 0 ? 1 : 0;
    for (int64_t j = 0; j < y.rows(); ++j)
      if (j != i && Distance(y, i, j) < Distance(y, i, nearest)) nearest = j;
    own += (i < each) == (nearest < each);
  }
  return static_cast<double>(own) / static_cast<double>(y.rows());
}

TEST(Tsne, EveryRowOfSimilaritiesHasThePerplexityAskedFor) {
  const Matrix<double> points = TwoGroups(40, 8, 3);
  for (const double perplexity : {2.0, 15.0, 30.0}) {
    const Matrix<double> p = TsneSimilarities(Context(), points.view(), perplexity);
    for (int64_t i = 0; i < p.rows(); ++i) {
      double sum = 0, bits = 0;
      for (int64_t j = 0; j < p.cols(); ++j) {
        sum += p(i, j);
        if (p(i, j) > 0) bits -= p(i, j) * std::log2(p(i, j));
      }
      EXPECT_NEAR(sum, 1, 1e-12);
      EXPECT_NEAR(std::exp2(bits), perplexity, 1e-6 * perplexity);
      EXPECT_EQ(p(i, i), 0);
    }
    // A Gaussian of the distance: the logarithm of p(j | i) / p(k | i) is proportional to the difference of squares.
    const auto squared = [&](int64_t j) {
      double sum = 0;
      for (int64_t c = 0; c < 8; ++c) sum += std::pow(points(0, c) - points(j, c), 2);
      return sum;
    };
    const double one = std::log(p(0, 1) / p(0, 2)) / (squared(2) - squared(1)),
                 two = std::log(p(0, 1) / p(0, 3)) / (squared(3) - squared(1));
    EXPECT_NEAR(one, two, 1e-9 * std::abs(one));
  }
}

TEST(Tsne, KeepsGroupsApart) {
  const int64_t each = 60;
  const Matrix<double> y = Tsne(Context(), TwoGroups(each, 16, 4).view());
  EXPECT_EQ(NearOwnGroup(y, each), 1.0);
  double within = 0, between = 0;
  for (int64_t i = 0; i < each; ++i)
    for (int64_t j = 0; j < each; ++j) {
      within += Distance(y, i, j);
      between += Distance(y, i, each + j);
    }
  EXPECT_GT(between, 1.5 * within);
  EXPECT_LT(NearOwnGroup(Tsne(Context(), TwoGroups(each, 16, 0).view()), each), 0.8) << "where there are no groups";
}

TEST(Tsne, DependsOnTheSeedAndOnNothingElse) {
  const Matrix<double> points = TwoGroups(30, 5, 2);
  Context one, four;
  one.threads = 1;
  four.threads = 4;
  const Matrix<double> y = Tsne(one, points.view()), again = Tsne(four, points.view()),
                       other = Tsne(one, points.view(), {.seed = 1});
  double differences = 0;
  for (int64_t k = 0; k < y.size(); ++k) {
    EXPECT_EQ(y.data()[k], again.data()[k]);
    differences += std::abs(y.data()[k] - other.data()[k]);
  }
  EXPECT_GT(differences, 1);
}

TEST(Tsne, TakesFewAndEqualPointsAndRefusesOthers) {
  EXPECT_EQ(Tsne(Context(), Matrix<double>::Zeros(2, 4).view()).rows(), 2);
  const Matrix<double> equal = Tsne(Context(), Matrix<double>::Zeros(9, 4).view());
  for (const double y : equal.span()) EXPECT_TRUE(std::isfinite(y));
  EXPECT_THROW(Tsne(Context(), Matrix<double>::Zeros(kTsnePoints + 1, 1).view()), Error);
  Matrix<double> bad = Matrix<double>::Zeros(9, 4);
  bad(3, 2) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(Tsne(Context(), bad.view()), Error);
}

}  // namespace
}  // namespace shiftrt
