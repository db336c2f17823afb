// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: the choice and the sum against float64, and the products of slots against those of each alone.
#include "kernels/cuda/experts.h"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/matvec.h"
#include "runtime/check.h"
#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class ExpertsOnGpu : public CudaTest {
 protected:
  std::vector<double> Fetched(const DeviceBuffer<float>& buffer) const {
    const std::vector<float> raw = Output<float>::Fetch(stream_, buffer);
    return {raw.begin(), raw.end()};
  }
};

TEST_F(ExpertsOnGpu, ChoosesTheLargestProbabilities) {
  struct Case {
    int64_t tokens, experts, active;
  };
  for (const auto& [tokens, experts, active] :
       {Case{1, 1, 1}, {5, 6, 6}, {9, 33, 2}, {3, 128, 8}, {2, 500, 10}, {4, 1000, 32}}) {
    for (const bool normalised : {false, true}) {
      SCOPED_TRACE(std::to_string(experts) + " experts");
      const auto logits = Input<float>::Normal(stream_, tokens * experts, 3, 2);
      const DeviceBuffer<int32_t> chosen(stream_, tokens * active, "a test");
      const Output<float> weights(stream_, tokens * active);
      ChooseExperts(stream_, {logits.data(), tokens, experts}, active, normalised, chosen.data(), weights.data());
      const std::vector<int32_t> found = Output<int32_t>::Fetch(stream_, chosen);
      const std::vector<double> of = weights.Values();
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<int64_t> order(experts);
        std::iota(order.begin(), order.end(), int64_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return logits[t * experts + a] > logits[t * experts + b]; });
        double all = 0, total = 0;
        for (int64_t e = 0; e < experts; ++e) all += std::exp(logits[t * experts + e]);
        for (int64_t i = 0; i < active; ++i) total += std::exp(logits[t * experts + order[i]]);
        std::sort(order.begin(), order.begin() + active);
        for (int64_t i = 0; i < active; ++i) {
          const double p = std::exp(logits[t * experts + order[i]]) / (normalised ? total : all);
          EXPECT_EQ(found[t * active + i], order[i]) << "token " << t;
          EXPECT_NEAR(of[t * active + i], p, 32 * test::kUnit * p) << "token " << t;
        }
      }
    }
  }
}

// Among equal ones the first; a NaN before all others, and never an expert that does not exist.
TEST_F(ExpertsOnGpu, OrdersEqualProbabilitiesAndNans) {
  const double nan = std::nan("");
  const Input<float> logits(stream_, {1, 2, 2, 2, 0, nan, 3, nan, -HUGE_VAL, -HUGE_VAL, -HUGE_VAL, -HUGE_VAL});
  const DeviceBuffer<int32_t> chosen(stream_, 6, "a test");
  const Output<float> weights(stream_, 6);
  ChooseExperts(stream_, {logits.data(), 3, 4}, 2, false, chosen.data(), weights.data());
  EXPECT_EQ(Output<int32_t>::Fetch(stream_, chosen), (std::vector<int32_t>{1, 2, 1, 3, 0, 1}));
  EXPECT_THROW(ChooseExperts(stream_, {logits.data(), 3, 4}, 5, false, chosen.data(), weights.data()), Error);
  EXPECT_THROW(ChooseExperts(stream_, {logits.data(), 1, 1025}, 2, false, chosen.data(), weights.data()), Error);
}

TEST_F(ExpertsOnGpu, GradientsOfTheChoiceAgreeWithFloat64) {
  struct Case {
    int64_t tokens, experts, active;
  };
  for (const auto& [tokens, experts, active] : {Case{1, 1, 1}, {5, 6, 6}, {9, 33, 2}, {3, 200, 32}}) {
    for (const bool normalised : {false, true}) {
      SCOPED_TRACE(std::to_string(experts) + " experts");
      const auto logits = Input<float>::Normal(stream_, tokens * experts, 3, 2),
                 dweights = Input<float>::Normal(stream_, tokens * active, 4);
      std::vector<int32_t> experts_of;  // some that ascend
      for (int64_t i = 0; i < tokens * active; ++i)
        experts_of.push_back(static_cast<int32_t>(i % active * (experts / active)));
      const DeviceBuffer<int32_t> chosen(stream_, std::span<const int32_t>(experts_of), "a test");
      ChooseExpertsGradient(stream_, chosen.data(), dweights.data(), active, normalised,
                            {logits.data(), tokens, experts});
      const std::vector<double> found = Fetched(logits.buffer);
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<double> p, dp(experts, 0.0);
        double all = 0, total = 0, mean = 0, sum = 0;
        for (int64_t e = 0; e < experts; ++e) p.push_back(std::exp(logits[t * experts + e])), all += p.back();
        for (double& value : p) value /= all;
        const auto expert_of = [&](int64_t i) { return experts_of[t * active + i]; };
        for (int64_t i = 0; i < active; ++i) total += p[expert_of(i)];
        for (int64_t i = 0; i < active; ++i) mean += dweights[t * active + i] * p[expert_of(i)] / total;
        for (int64_t i = 0; i < active; ++i) {
          const double dw = dweights[t * active + i];
          dp[expert_of(i)] = normalised ? (dw - mean) / total : dw;
          sum += dp[expert_of(i)] * p[expert_of(i)];
        }
        for (int64_t e = 0; e < experts; ++e)
          EXPECT_NEAR(found[t * experts + e], p[e] * (dp[e] - sum), 1e-5 * (p[e] / std::min(1.0, total) + 1e-3))
              << "token " << t << ", expert " << e;
      }
    }
  }
}

TEST_F(ExpertsOnGpu, SumsAgreeWithFloat64) {
  constexpr int64_t kTokens = 3, kActive = 4;
  for (const int64_t cols : {7, 64, 1040}) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(cols);
      const auto rows = Input<float>::Normal(stream_, kTokens * kActive * cols, 1),
                 weights = Input<float>::Normal(stream_, kTokens * kActive, 2),
                 shared = Input<float>::Normal(stream_, kTokens * cols, 3),
                 gate = Input<float>::Normal(stream_, kTokens, 4),
                 before = Input<float>::Normal(stream_, kTokens * cols, 5);
      const std::vector<int32_t> slots = {3, 7, 0, 11, 1, 2, 10, 4, 5, 9, 8, 6};
      const DeviceBuffer<int32_t> order(stream_, std::span<const int32_t>(slots), "a test");
      SumExperts(stream_, {rows.data(), order.data(), weights.data(), kActive, shared.data(), gate.data()}, accumulate,
                 {before.data(), kTokens, cols});
      const std::vector<double> found = Fetched(before.buffer);
      for (int64_t i = 0; i < kTokens * cols; ++i) {
        const int64_t token = i / cols;
        double sum = shared[i] / (1 + std::exp(-gate[token])), size = std::abs(sum);
        if (accumulate) sum += before[i], size += std::abs(before[i]);
        for (int64_t a = 0; a < kActive; ++a) {
          const double term = weights[token * kActive + a] * rows[slots[token * kActive + a] * cols + i % cols];
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(found[i], sum, 8 * test::kUnit * size) << i;
      }
    }
  }
}

TEST_F(ExpertsOnGpu, ClampedUnitsAndBiasesAgreeWithFloat64) {
  constexpr int64_t kSlots = 5, kExperts = 3;
  const std::vector<int32_t> experts = {2, 0, 2, 1, 0};
  const DeviceBuffer<int32_t> chosen(stream_, std::span<const int32_t>(experts), "a test");
  const ClampedSwiGlu unit{.alpha = 1.25f, .limit = 0.75f};
  for (const int64_t units : {8, 40, 1032}) {
    const auto bias = Input<float>::Normal(stream_, kExperts * 2 * units, 2);
    ForEveryType([&](auto type) {
      using T = decltype(type);
      const auto gate_up = Input<T>::Normal(stream_, kSlots * 2 * units, 1);
      for (const bool biased : {false, true}) {
        const Output<T> to(stream_, kSlots * units);
        ActivateExperts(stream_, unit, gate_up.array(), biased ? bias.data() : nullptr, chosen.data(), kSlots, units,
                        to.array());
        const std::vector<double> found = to.Values();
        for (int64_t i = 0; i < kSlots * units; ++i) {
          const int64_t slot = i / units, at = slot * 2 * units + i % units,
                        of_bias = experts[slot] * 2 * units + i % units;
          const double g = std::min<double>(gate_up[at] + (biased ? bias[of_bias] : 0), unit.limit);
          const double u =
              std::clamp<double>(gate_up[at + units] + (biased ? bias[of_bias + units] : 0), -unit.limit, unit.limit);
          const double expected = (u + 1) * g / (1 + std::exp(-unit.alpha * g));
          ASSERT_NEAR(found[i], expected, (kUnit<T> + 32 * test::kUnit) * (std::abs(expected) + 1e-2)) << i;
        }
      }
    });
  }
}

// The outputs of experts with biases, each weighted.
TEST_F(ExpertsOnGpu, SumsHaveTheBiasesOfTheChosenExperts) {
  constexpr int64_t kTokens = 2, kActive = 3, kExperts = 4;
  const std::vector<int32_t> experts = {0, 2, 3, 1, 2, 3};
  const DeviceBuffer<int32_t> chosen(stream_, std::span<const int32_t>(experts), "a test");
  for (const int64_t cols : {7, 64}) {
    const auto rows = Input<float>::Normal(stream_, kTokens * kActive * cols, 1),
               weights = Input<float>::Normal(stream_, kTokens * kActive, 2),
               bias = Input<float>::Normal(stream_, kExperts * cols, 3);
    const Output<float> to(stream_, kTokens * cols);
    SumExperts(stream_,
               {.rows = rows.data(),
                .weights = weights.data(),
                .active = kActive,
                .bias = bias.data(),
                .experts = chosen.data()},
               false, {to.data(), kTokens, cols});
    const std::vector<double> found = to.Values();
    for (int64_t i = 0; i < kTokens * cols; ++i) {
      double sum = 0, size = 0;
      for (int64_t a = 0; a < kActive; ++a) {
        const int64_t at = i / cols * kActive + a;
        for (const double value : {rows[at * cols + i % cols], bias[experts[at] * cols + i % cols]}) {
          sum += weights[at] * value;
          size += std::abs(weights[at] * value);
        }
      }
      ASSERT_NEAR(found[i], sum, 8 * test::kUnit * size) << i;
    }
  }
}

// Four experts, and slots that name some of them twice and one not at all.
TEST_F(ExpertsOnGpu, ProductsOfSlotsAreThoseOfEachAlone) {
  constexpr int64_t kExperts = 4, kRows = 38, kCols = 264;
  const std::vector<int32_t> experts = {2, 0, 3, 2, 2, 0};
  const auto slots = std::ssize(experts);
  const DeviceBuffer<int32_t> chosen(stream_, std::span<const int32_t>(experts), "a test");
  ForEveryType([&](auto type) {
    using T = decltype(type);
    const auto w = Input<T>::Normal(stream_, kExperts * kRows * kCols, 1);
    for (const int64_t slots_per_vector : {1, 2, 6}) {
      const auto x = Input<float>::Normal(stream_, slots / slots_per_vector * kCols, 2);
      for (const bool gated : {false, true}) {
        const int64_t outputs = gated ? kRows / 2 : kRows;
        const Output<float> together(stream_, slots * outputs), alone(stream_, slots * outputs);
        MatVecProblem problem{.w = w.array(), .rows = kRows, .cols = kCols, .x = x.data(), .y = together.data()};
        const ExpertSlots of{chosen.data(), slots, slots_per_vector};
        if (gated) {
          MatVecGatedOfExperts(stream_, Activation::kSilu, problem, of, 2);
        } else {
          MatVecOfExperts(stream_, problem, of, 2);
        }
        for (int64_t s = 0; s < slots; ++s) {
          problem.w = WeightRows(w.array()).Rows(experts[s] * kRows, kRows, kCols);
          problem.x = x.data() + s / slots_per_vector * kCols;
          problem.y = alone.data() + s * outputs;
          if (gated) {
            MatVecGated(stream_, Activation::kSilu, problem, 2);
          } else {
            MatVec(stream_, problem, 2);
          }
        }
        EXPECT_EQ(together.Values(), alone.Values());
      }
    }
  });
}

}  // namespace
}  // namespace shiftrt::gpu
