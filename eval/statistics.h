// SPDX-License-Identifier: Apache-2.0
// How sure a score is, and how sure the difference of two is.
#pragma once

#include <cstdint>
#include <span>

namespace shiftrt {

struct Estimate {
  double value = 0;
  double error = 0;  // standard error; NaN where none can be given (a single value)
};

// Mean with the standard error sqrt(sum (x - mean)^2 / (n - 1) / n).
Estimate Mean(std::span<const double> values);
// The plain mean of independent estimates: errors add in squares.
Estimate MeanOf(std::span<const Estimate> estimates);

// Two variants on the same items, each 0 or 1 per item.
struct Paired {
  Estimate difference;     // second - first
  int64_t only_first = 0;  // items only the first has right
  int64_t only_second = 0;
  double p = 1;  // McNemar's test, exact and two-sided, of only_first = only_second
};
Paired Compare(std::span<const double> first, std::span<const double> second);

// Two-sided exact binomial test of `successes` in `trials` at one half.
double SignTest(int64_t successes, int64_t trials);

}  // namespace shiftrt
