// SPDX-License-Identifier: Apache-2.0
#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "eval/metrics.h"

namespace shiftrt {
namespace {

TEST(Statistics, AMeanOfZerosAndOnesHasTheBinomialError) {
  const Estimate mean = Mean(std::vector<double>{1, 0, 1, 1});
  EXPECT_DOUBLE_EQ(mean.value, 0.75);
  EXPECT_DOUBLE_EQ(mean.error, std::sqrt(0.75 * 0.25 / 3));
  EXPECT_TRUE(std::isnan(Mean(std::vector<double>{1}).error));
}

// lm_eval.api.metrics.pooled_sample_stderr of the standard errors of each group; the group of one value has error 0.
TEST(Statistics, APooledErrorIsThatWithinTheGroups) {
  std::vector<std::vector<double>> groups = {{1, 0, 1, 1}, {0, 0, 1}, {1, 0}};
  EXPECT_NEAR(PooledError(groups), 0.188398055086813, 1e-15);
  groups.push_back({1});
  EXPECT_NEAR(PooledError(groups), 0.17873008824606015, 1e-15);
  EXPECT_TRUE(std::isnan(PooledError(std::vector<std::vector<double>>{{1}, {0}})));
}

TEST(Statistics, IndependentErrorsAddInSquares) {
  const Estimate mean = MeanOf(std::vector<Estimate>{{1, 3}, {2, 4}});
  EXPECT_DOUBLE_EQ(mean.value, 1.5);
  EXPECT_DOUBLE_EQ(mean.error, 2.5);
}

// scipy.stats.binomtest(k, n).pvalue
TEST(Statistics, TheSignTestIsExact) {
  EXPECT_DOUBLE_EQ(SignTest(0, 0), 1);
  EXPECT_DOUBLE_EQ(SignTest(5, 10), 1);
  EXPECT_NEAR(SignTest(0, 6), 2.0 / 64, 1e-14);
  EXPECT_NEAR(SignTest(2, 10), 0.109375, 1e-13);
  EXPECT_NEAR(SignTest(8, 10), 0.109375, 1e-13);
  // math: 2 * sum(comb(1000, i) for i in range(461)) / 2**1000
  EXPECT_NEAR(SignTest(460, 1000), 0.01244414627717178, 1e-12);
  EXPECT_GT(SignTest(6000, 14042), 0);
}

TEST(Statistics, PairsCountWhatOnlyOneHasRight) {
  const PairedScore paired = Compare(std::vector<double>{1, 1, 0, 0, 1}, std::vector<double>{0, 1, 0, 1, 0});
  EXPECT_EQ(paired.only_first, 2);
  EXPECT_EQ(paired.only_this, 1);
  EXPECT_DOUBLE_EQ(paired.difference, -0.2);
  // Differences -1, 0, 0, 1, -1: squares about the mean sum to 2.8.
  EXPECT_NEAR(paired.standard_error, std::sqrt(2.8 / 4 / 5), 1e-15);
  EXPECT_DOUBLE_EQ(paired.p, 1);
}

std::vector<double> Right(const Item& item, const std::vector<Score>& scores) {
  std::vector<double> right;
  for (const Metric& metric : Measure(*ParseTasks("piqa")[0], {item}, {scores}, /*all=*/true))
    if (metric.counts) right.push_back(metric.values[0]);
  return right;  // acc, acc_norm, acc_bytes, greedy
}

TEST(Metrics, LengthsAreCodePointsOrBytesAndTheFirstWinsATie) {
  const Item item{"", "", {{}, {}, {}}, 1, {10, 4, 4}, {10, 8, 4}, {10, 8, 4}};
  // Per code point -0.3, -0.5, -0.5: wrong; per byte -0.3, -0.25, -0.5: right.
  EXPECT_EQ(Right(item, {{-3, false}, {-2, true}, {-2, false}}), (std::vector<double>{1, 0, 1, 1}));
  // Per code point -0.5, -0.475, -0.5; per byte -0.5, -0.2375, -0.5.
  EXPECT_EQ(Right(item, {{-5, false}, {-1.9, false}, {-2, false}}), (std::vector<double>{1, 1, 1, 0}));
  // Per code point -0.3, -0.25, -0.25: the first of the two; per byte the second's -0.125 leads.
  EXPECT_EQ(Right(item, {{-3, false}, {-1, false}, {-1, false}}), (std::vector<double>{1, 1, 1, 0}));
}

// The values are those of APooledErrorIsThatWithinTheGroups.
TEST(Metrics, AccuraciesOfATaskWithSubjectsHaveThePooledError) {
  std::vector<Item> items;
  std::vector<std::vector<Score>> scores;
  const auto add = [&](const char* subject, bool right) {
    items.push_back({"", subject, {{}, {}}, 0, {1, 1}, {1, 1}, {1, 1}});
    scores.push_back({{right ? -1.0 : -3.0, true}, {-2, false}});
  };
  for (const bool right : {true, false, true}) add("anatomy", right);
  for (const bool right : {false, false, true}) add("virology", right);
  add("anatomy", true);
  for (const bool right : {true, false}) add("astronomy", right);
  const auto accuracy = [&](const char* task) { return Measure(*ParseTasks(task)[0], items, scores, false)[0]; };
  EXPECT_DOUBLE_EQ(accuracy("mmlu").value, 5.0 / 9);
  EXPECT_NEAR(accuracy("mmlu").standard_error, 0.188398055086813, 1e-15);
  EXPECT_NEAR(accuracy("piqa").standard_error, std::sqrt(5.0 / 9 * 4.0 / 9 / 8), 1e-15);
}

// The choices have 10 and 2 bytes, the answer that both share has 4: per byte of a choice -0.3 and -1, per byte of the
// answer -0.75 and -0.5.
TEST(Metrics, BitsPerByteAreOfTheAnswerAndAccuracyIsByTheChoices) {
  const Item item{"", "", {{}, {}}, 0, {10, 2}, {10, 2}, {4, 4}};
  const std::vector<Score> scores = {{-3, false}, {-2, false}};
  EXPECT_EQ(Right(item, scores), (std::vector<double>{0, 1, 1, 0}));
  for (const Metric& metric : Measure(*ParseTasks("winogrande")[0], {item}, {scores}, /*all=*/false)) {
    if (metric.metric == kBitsPerByte) {
      EXPECT_DOUBLE_EQ(metric.value, 0.75 / std::log(2.0));
    } else if (metric.metric == kMargin) {
      EXPECT_DOUBLE_EQ(metric.value, -0.25 / std::log(2.0));
    }
  }
}

TEST(Metrics, AnEmptyAnswerIsNeverTheLikeliestByLength) {
  const Item item{"", "", {{}, {}}, 0, {0, 5}, {0, 5}, {0, 5}};
  EXPECT_EQ(Right(item, {{-1, false}, {-9, false}}), (std::vector<double>{1, 0, 0, 0}));
}

}  // namespace
}  // namespace shiftrt
