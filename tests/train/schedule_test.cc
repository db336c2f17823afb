// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "include/shiftrt/finetune.h"
#include "runtime/check.h"

namespace shiftrt {
namespace {

TEST(Rate, OfAWholeModelIsLowerForLargerModels) {
  EXPECT_EQ(RecoveryRate(128), 1e-4);
  EXPECT_EQ(RecoveryRate(576), 1e-4);
  EXPECT_NEAR(RecoveryRate(896), 2e-5, 2e-7);
  EXPECT_NEAR(RecoveryRate(1536), 1.17e-5, 1e-7);
}

// Against transformers' get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup, one step on in warm-up.
TEST(Schedule, RisesAndFalls) {
  const Schedule linear{Decay::kLinear, 1.0, 4, 12};
  for (int step = 0; step < 4; ++step) EXPECT_DOUBLE_EQ(linear.Rate(step), (step + 1) / 4.0);
  for (int step = 4; step < 12; ++step) EXPECT_DOUBLE_EQ(linear.Rate(step), (12 - step) / 8.0);
  const Schedule cosine{Decay::kCosine, 2.0, 0, 4};
  EXPECT_DOUBLE_EQ(cosine.Rate(0), 2.0);
  EXPECT_NEAR(cosine.Rate(1), 1 + std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(cosine.Rate(2), 1, 1e-12);
  EXPECT_NEAR(cosine.Rate(3), 1 - std::sqrt(0.5), 1e-12);
  const Schedule constant{Decay::kConstant, 3.0, 1, 4};
  for (int step = 0; step < 4; ++step) EXPECT_DOUBLE_EQ(constant.Rate(step), 3.0);
}

TEST(Schedule, PartsHaveMultiplesOfTheRate) {
  const Schedule schedule{.decay = Decay::kLinear, .rate = 1, .warmup = 2, .steps = 10, .adapters = 0.25, .head = 3};
  for (int step = 0; step < 10; ++step) {
    EXPECT_DOUBLE_EQ(schedule.Rate(step, TrainedPart::kMethod), schedule.Rate(step));
    EXPECT_DOUBLE_EQ(schedule.Rate(step, TrainedPart::kAdapters), 0.25 * schedule.Rate(step));
    EXPECT_DOUBLE_EQ(schedule.Rate(step, TrainedPart::kHead), 3 * schedule.Rate(step));
  }
}

TEST(Schedule, WarmupIsANumberOrAShareOfSteps) {
  EXPECT_EQ(WarmupSteps(0, 100), 0);
  EXPECT_EQ(WarmupSteps(0.03, 100), 3);
  EXPECT_EQ(WarmupSteps(7, 100), 7);
  EXPECT_EQ(WarmupSteps(1, 2), 1);
  for (const double warmup : {-1.0, 2.5, std::nan(""), 100.0})
    EXPECT_THROW(WarmupSteps(warmup, 100), UsageError) << warmup;
  EXPECT_THROW(ParseDecay("step"), UsageError);
  for (const Decay decay : {Decay::kConstant, Decay::kLinear, Decay::kCosine})
    EXPECT_EQ(ParseDecay(Name(decay)), decay);
}

}  // namespace
}  // namespace shiftrt
