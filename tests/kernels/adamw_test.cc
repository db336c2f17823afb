// SPDX-License-Identifier: Apache-2.0
#include "kernels/adamw.h"

#include "tests/kernels/adamw_cases.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

class AdamWTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(AdamWTest);

std::vector<float> Floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

struct Trained {
  std::vector<float> values, first, second;
  bool operator==(const Trained&) const = default;
};

// Steps with gradients of seeds 1, 2 ...
Trained Train(const Context& context, AdamW settings, int64_t count, int64_t steps) {
  Trained state{Floats(test::Drawn(count, 0)), std::vector<float>(count), std::vector<float>(count)};
  for (settings.step = 1; settings.step <= steps; ++settings.step)
    AdamWStep(context, settings, Floats(test::Drawn(count, settings.step, 0.1)), state.values, state.first,
              state.second);
  return state;
}

TEST_P(AdamWTest, StepsAgreeWithFloat64) {
  for (const test::AdamWCase& c : test::AdamWCases()) {
    SCOPED_TRACE(c.Name());
    const test::AdamWProblem p(c);
    const test::AdamWProblem::Results exact = p.Exactly();
    std::vector<float> values = Floats(p.values), first = Floats(p.first), second = Floats(p.second);
    AdamWStep(context_, c.settings, Floats(p.gradient), values, first, second);
    test::ExpectClose("values", {values.begin(), values.end()}, exact.values, {8});
    test::ExpectClose("first", {first.begin(), first.end()}, exact.first, {8});
    test::ExpectClose("second", {second.begin(), second.end()}, exact.second, {8});
    if (HasFailure()) return;
  }
}

// The errors of one step must not grow in those that follow.
TEST_P(AdamWTest, TwentyStepsAgreeWithFloat64) {
  const int64_t count = 37, steps = 20;
  const AdamW settings{.rate = 1e-2f, .beta1 = 0.8f, .beta2 = 0.95f, .decay = 0.1f, .gradient_scale = 0.25f};
  const Trained found = Train(context_, settings, count, steps);
  std::vector<double> first(count), second(count);
  std::vector<double> values = test::Drawn(count, 0);
  for (int64_t step = 1; step <= steps; ++step) {
    const std::vector<double> gradient = test::Drawn(count, step, 0.1);
    const auto power = static_cast<double>(step);
    for (int64_t i = 0; i < count; ++i) {
      const double g = static_cast<double>(settings.gradient_scale) * gradient[i];
      first[i] = settings.beta1 * first[i] + (1 - static_cast<double>(settings.beta1)) * g;
      second[i] = settings.beta2 * second[i] + (1 - static_cast<double>(settings.beta2)) * g * g;
      const double unbiased = first[i] / (1 - std::pow(static_cast<double>(settings.beta1), power));
      const double spread = std::sqrt(second[i] / (1 - std::pow(static_cast<double>(settings.beta2), power)));
      values[i] = values[i] * (1 - static_cast<double>(settings.rate) * settings.decay) -
                  settings.rate * unbiased / (spread + settings.epsilon);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    EXPECT_NEAR(found.first[i], first[i], 1e-7) << i;
    EXPECT_NEAR(found.second[i], second[i], 1e-8) << i;
    EXPECT_NEAR(found.values[i], values[i], 1e-6) << i;
  }
}

TEST_P(AdamWTest, NeitherThreadsNorInstructionsChangeABit) {
  for (const int64_t count : {1, 7, 4096, 30'011}) {
    const AdamW settings{.rate = 1e-3f, .decay = 0.01f};
    const Trained found = Train(On(1), settings, count, 3);
    EXPECT_EQ(found, Train(On(3), settings, count, 3)) << count;
    EXPECT_EQ(found, Train({1, Isa::kPortable}, settings, count, 3)) << count;
    const double squares = SumOfSquares(On(1), found.values);
    EXPECT_EQ(squares, SumOfSquares(On(3), found.values));
    EXPECT_EQ(squares, SumOfSquares({2, Isa::kPortable}, found.values));
  }
}

TEST_P(AdamWTest, SumsAgreeWithFloat64) {
  for (const int64_t count : test::kSquareCounts) {
    const std::vector<double> values = test::Drawn(count, 3);
    const double sum = test::SumOfSquaresExactly(values);
    EXPECT_NEAR(SumOfSquares(context_, Floats(values)), sum, 1e-12 * sum) << count;
  }
}

TEST_P(AdamWTest, RefusesWhatDoesNotFit) {
  std::vector<float> three(3), four(4);
  EXPECT_THROW(AdamWStep(context_, {}, three, four, four, four), Error);
  EXPECT_THROW(AdamWStep(context_, {}, four, four, three, four), Error);
  EXPECT_THROW(AdamWStep(context_, {}, four, four, four, three), Error);
  EXPECT_THROW(AdamWStep(context_, {.step = 0}, four, four, four, four), Error);
}

}  // namespace
}  // namespace shiftrt
