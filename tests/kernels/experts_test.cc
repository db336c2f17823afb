// SPDX-License-Identifier: Apache-2.0
// Routing and sums of mixtures of experts against plain loops in float64.
#include "kernels/experts.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/check.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

Matrix<float> RandomLogits(int64_t tokens, int64_t experts, uint64_t seed) {
  Matrix<float> logits(tokens, experts);
  Random random(seed);
  for (float& value : logits.span()) value = static_cast<float>(6 * random.Uniform() - 3);
  return logits;
}

std::vector<double> SoftmaxOf(const Matrix<float>& logits, int64_t token) {
  std::vector<double> p(logits.cols());
  double sum = 0;
  for (int64_t e = 0; e < logits.cols(); ++e) sum += p[e] = std::exp(static_cast<double>(logits(token, e)));
  for (double& value : p) value /= sum;
  return p;
}

// The experts of a token by their probability, the largest first.
std::vector<int64_t> Order(const std::vector<double>& p) {
  std::vector<int64_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return p[a] > p[b]; });
  return order;
}

int64_t ExpertOf(const ExpertRouting& routing, int64_t slot) {
  return std::upper_bound(routing.offsets.begin(), routing.offsets.end(), slot) - routing.offsets.begin() - 1;
}

TEST(Experts, EachTokenHasItsMostProbableExperts) {
  for (const auto& [tokens, experts, active] :
       std::vector<std::array<int64_t, 3>>{{1, 8, 2}, {70, 8, 2}, {33, 128, 8}, {5, 128, 1}, {40, 3, 3}, {9, 130, 2}})
    for (const bool normalised : {false, true}) {
      const Matrix<float> logits = RandomLogits(tokens, experts, 3);
      const ExpertRouting routing = RouteToExperts(Context{2, BestIsa()}, logits.view(), active, normalised);
      ASSERT_EQ(routing.offsets.back(), tokens * active);
      for (int64_t token = 0; token < tokens; ++token) {
        const std::vector<double> p = SoftmaxOf(logits, token);
        std::vector<int64_t> expected = Order(p);
        expected.resize(active);
        std::sort(expected.begin(), expected.end());
        double sum = 0;
        for (const int64_t expert : expected) sum += p[expert];
        for (int64_t i = 0; i < active; ++i) {
          const int64_t slot = routing.slots_of[token * active + i];
          EXPECT_EQ(routing.token_of[slot], token);
          EXPECT_EQ(ExpertOf(routing, slot), expected[i]);
          EXPECT_NEAR(routing.weights[slot], p[expected[i]] / (normalised ? sum : 1), 2e-6);
        }
      }
      for (int64_t slot = 1; slot < routing.slots(); ++slot)
        EXPECT_TRUE(ExpertOf(routing, slot) > ExpertOf(routing, slot - 1) ||
                    routing.token_of[slot] > routing.token_of[slot - 1]);
    }
}

TEST(Experts, ABatchIsRoutedAsItsTokensAlone) {
  const Matrix<float> logits = RandomLogits(21, 16, 5);
  const ExpertRouting all = RouteToExperts(Context{3, BestIsa()}, logits.view(), 4, true);
  for (int64_t token = 0; token < 21; ++token) {
    const ExpertRouting one = RouteToExperts(Context{1, BestIsa()}, logits.view().Rows(token, 1), 4, true);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(one.weights[i], all.weights[all.slots_of[token * 4 + i]]);
  }
}

TEST(Experts, SumsAreWeightedAndInTheOrderOfExperts) {
  const Matrix<float> logits = RandomLogits(37, 6, 7), x = RandomLogits(37 * 3, 1100, 8);
  const ExpertRouting routing = RouteToExperts(Context{2, BestIsa()}, logits.view(), 3, true);
  for (const bool weighted : {true, false}) {
    const Matrix<float> one(37, 1100), three(37, 1100);
    std::fill_n(one.data(), one.size(), NAN);
    SumOverExperts(Context{1, BestIsa()}, routing, weighted, x.view(), one.view());
    SumOverExperts(Context{3, BestIsa()}, routing, weighted, x.view(), three.view());
    EXPECT_EQ(std::memcmp(one.data(), three.data(), sizeof(float) * one.size()), 0);
    for (int64_t token = 0; token < 37; ++token)
      for (int64_t j = 0; j < 1100; ++j) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < 3; ++i) {
          const int64_t slot = routing.slots_of[token * 3 + i];
          const double term = (weighted ? static_cast<double>(routing.weights[slot]) : 1.0) * x(slot, j);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(one(token, j), sum, 4e-7 * size) << token << " " << j;
      }
  }
}

// The gradient of the sum over the slots of c[slot] w[slot], by central differences of a float64 softmax.
TEST(Experts, TheGradientOfTheLogitsIsThatOfTheWeights) {
  constexpr int64_t kTokens = 5, kExperts = 7, kActive = 3;
  const Matrix<float> logits = RandomLogits(kTokens, kExperts, 9), c = RandomLogits(1, kTokens * kActive, 10);
  for (const bool normalised : {false, true}) {
    const ExpertRouting routing = RouteToExperts(Context{2, BestIsa()}, logits.view(), kActive, normalised);
    const Matrix<float> dlogits(kTokens, kExperts);
    RouteToExpertsGradient(Context{2, BestIsa()}, routing, normalised, c.span(), dlogits.view());
    for (int64_t token = 0; token < kTokens; ++token) {
      const auto value = [&](int64_t moved, double by) {
        std::vector<double> p(kExperts);
        double all = 0, chosen = 0, sum = 0;
        for (int64_t e = 0; e < kExperts; ++e)
          all += p[e] = std::exp(static_cast<double>(logits(token, e)) + (e == moved ? by : 0));
        for (int64_t i = 0; i < kActive; ++i) {
          const int64_t slot = routing.slots_of[token * kActive + i];
          const double share = p[ExpertOf(routing, slot)] / all;
          chosen += share;
          sum += static_cast<double>(c.span()[slot]) * share;
        }
        return normalised ? sum / chosen : sum;
      };
      for (int64_t e = 0; e < kExperts; ++e)
        EXPECT_NEAR(dlogits(token, e), (value(e, 1e-5) - value(e, -1e-5)) / 2e-5, 2e-6) << token << " " << e;
    }
  }
}

TEST(Experts, TheGradientOfAWeightIsAProduct) {
  const Matrix<float> logits = RandomLogits(4, 5, 11), a = RandomLogits(8, 30, 12), g = RandomLogits(8, 30, 13);
  const ExpertRouting routing = RouteToExperts(Context{2, BestIsa()}, logits.view(), 2, false);
  const Matrix<float> scaled = g.Clone(), rows = g.Clone();
  std::vector<float> dweights(8);
  ExpertWeightGradient(Context{2, BestIsa()}, routing, a.view(), scaled.view(), dweights);
  ScaleByExpertWeights(Context{2, BestIsa()}, routing, rows.view());
  for (int64_t slot = 0; slot < 8; ++slot) {
    double sum = 0;
    for (int64_t j = 0; j < 30; ++j) {
      sum += static_cast<double>(a(slot, j)) * g(slot, j);
      EXPECT_EQ(scaled(slot, j), routing.weights[slot] * g(slot, j));
      EXPECT_EQ(rows(slot, j), scaled(slot, j));
    }
    EXPECT_NEAR(dweights[slot], sum, 1e-5);
  }
}

// The bias of an output adds <b, dy> to the gradient of its weight.
TEST(Experts, ABiasCountsForTheGradientOfAWeight) {
  const Matrix<float> b = RandomLogits(1, 30, 14), dy = RandomLogits(8, 30, 15);
  std::vector<float> dweights(8, 3.0f);
  ExpertBiasWeightGradient(Context{2, BestIsa()}, {b.data(), DType::kFloat32, {30}}, dy.view(), dweights);
  for (int64_t slot = 0; slot < 8; ++slot) {
    double sum = 3;
    for (int64_t j = 0; j < 30; ++j) sum += static_cast<double>(b(0, j)) * dy(slot, j);
    EXPECT_NEAR(dweights[slot], sum, 1e-5);
  }
  EXPECT_THROW(ExpertBiasWeightGradient(Context{}, {b.data(), DType::kFloat32, {29}}, dy.view(), dweights), Error);
}

TEST(Experts, MoreActiveExpertsThanThereAreAreRefused) {
  const Matrix<float> logits = RandomLogits(2, 4, 1);
  for (const int64_t active : {0, 5}) EXPECT_THROW(RouteToExperts(Context{}, logits.view(), active, true), Error);
}

}  // namespace
}  // namespace shiftrt
