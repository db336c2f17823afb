// SPDX-License-Identifier: Apache-2.0
#include "kernels/adamw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kGrain = 4096;  // elements per partial sum, and the fewest of a thread
constexpr int64_t kLanes = 8;

}  // namespace

AdamWFactors FactorsOf(const AdamW& settings) {
  Check(settings.step >= 1, "step {} of AdamW: steps count from 1", settings.step);
  const auto step = static_cast<double>(settings.step);
  return {.gradient_scale = settings.gradient_scale,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .keep = 1 - settings.rate * settings.decay,
          .rate = static_cast<float>(settings.rate / (1 - std::pow(static_cast<double>(settings.beta1), step))),
          .root = static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(settings.beta2), step))),
          .epsilon = settings.epsilon};
}

// This file is compiled without fused multiply-adds (kernels/CMakeLists.txt), so that the bits are those of any other
// CPU.
void AdamWStep(const Context& context, const AdamW& settings, std::span<const float> gradient, std::span<float> values,
               std::span<float> first, std::span<float> second) {
  Check(gradient.size() == values.size() && first.size() == values.size() && second.size() == values.size(),
        "a step of AdamW with {} gradients, {} and {} moments for {} values", gradient.size(), first.size(),
        second.size(), values.size());
  const AdamWFactors f = FactorsOf(settings);
  const float rest1 = 1 - f.beta1, rest2 = 1 - f.beta2;
  ParallelFor(context, std::ssize(values), kGrain, [&](int64_t begin, int64_t end) {
    float *value = values.data(), *m = first.data(), *v = second.data();
    const float* raw = gradient.data();
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float g = f.gradient_scale * raw[i];
      m[i] = f.beta1 * m[i] + rest1 * g;
      v[i] = f.beta2 * v[i] + rest2 * (g * g);
      value[i] = f.keep * value[i] - f.rate * m[i] / (std::sqrt(v[i]) * f.root + f.epsilon);
    }
  });
}

double SumOfSquares(const Context& context, std::span<const float> values) {
  const int64_t n = std::ssize(values);
  std::vector<double> partial((n + kGrain - 1) / kGrain);
  ParallelFor(context, std::ssize(partial), 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      double sums[kLanes] = {};
      int64_t i = chunk * kGrain;
      const int64_t stop = std::min(n, i + kGrain);
      for (; i + kLanes <= stop; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const double value = values[i + lane];
          sums[lane] += value * value;
        }
      for (; i < stop; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
      partial[chunk] = std::accumulate(sums, sums + kLanes, 0.0);
    }
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

}  // namespace shiftrt
