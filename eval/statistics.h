// SPDX-License-Identifier: Apache-2.0
// Standard errors of scores and of paired differences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "include/shiftrt/measurements.h"

namespace shiftrt {

struct Estimate {
  double value = 0;
  double error = 0;  // standard error; NaN where none can be given (a single value)
};

// Mean with the standard error sqrt(sum (x - mean)^2 / (n - 1) / n).
Estimate Mean(std::span<const double> values);
// The standard error of the mean over all groups from the variances within the groups,
// sqrt(sum (x - mean of its group)^2 / (N - k) / N) for N values in k groups. NaN where every group has one value.
double PooledError(std::span<const std::vector<double>> groups);
// The plain mean of independent estimates: errors add in squares.
Estimate MeanOf(std::span<const Estimate> estimates);

// The scores `second` less `first` of two variants on the same items, each 0 or 1 per item where right answers count.
PairedScore Compare(std::span<const double> first, std::span<const double> second);

// Two-sided exact binomial test of `successes` in `trials` at one half.
double SignTest(int64_t successes, int64_t trials);

}  // namespace shiftrt
