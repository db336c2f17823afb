// SPDX-License-Identifier: Apache-2.0
#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/check.h"

namespace shiftrt {

Estimate Mean(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return {mean, n > 1 ? std::sqrt(squares / (n - 1) / n) : std::numeric_limits<double>::quiet_NaN()};
}

double PooledError(std::span<const std::vector<double>> groups) {
  double squares = 0, count = 0;
  for (const std::vector<double>& group : groups) {
    const auto n = static_cast<double>(group.size());
    const double mean = std::accumulate(group.begin(), group.end(), 0.0) / n;
    for (const double x : group) squares += (x - mean) * (x - mean);
    count += n;
  }
  const double spare = count - static_cast<double>(groups.size());
  return spare > 0 ? std::sqrt(squares / spare / count) : std::numeric_limits<double>::quiet_NaN();
}

Estimate MeanOf(std::span<const Estimate> estimates) {
  Estimate sum;
  for (const Estimate& e : estimates) {
    sum.value += e.value;
    sum.error += e.error * e.error;
  }
  const auto n = static_cast<double>(estimates.size());
  return {sum.value / n, std::sqrt(sum.error) / n};
}

double SignTest(int64_t successes, int64_t trials) {
  const int64_t tail = std::min(successes, trials - successes);
  const auto n = static_cast<double>(trials);
  double probability = 0;
  for (int64_t i = 0; i <= tail; ++i) {
    const auto k = static_cast<double>(i);
    probability += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) - n * std::log(2.0));
  }
  return std::min(1.0, 2 * probability);
}

PairedScore Compare(std::span<const double> first, std::span<const double> second) {
  Check(first.size() == second.size(), "{} items cannot be paired with {}", first.size(), second.size());
  PairedScore paired;
  std::vector<double> differences(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    differences[i] = second[i] - first[i];
    paired.only_first += differences[i] < 0;
    paired.only_this += differences[i] > 0;
  }
  const Estimate mean = Mean(differences);
  paired.difference = mean.value;
  paired.standard_error = mean.error;
  paired.p = SignTest(paired.only_first, paired.only_first + paired.only_this);
  return paired;
}

}  // namespace shiftrt
