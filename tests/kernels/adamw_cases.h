// SPDX-License-Identifier: Apache-2.0
// A step of AdamW as its paper has it (Algorithm 2 of Loshchilov & Hutter 2019), and sums of squares.
#pragma once

#include <string>

#include "kernels/adamw.h"
#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct AdamWCase {
  int64_t count;
  AdamW settings;

  std::string Name() const { return fmt::format("{} values, step {}, rate {}", count, settings.step, settings.rate); }
};

// The first steps, whose corrections of the bias are large, and later ones.
inline std::vector<AdamWCase> AdamWCases() {
  std::vector<AdamWCase> cases;
  for (const int64_t count : {1, 7, 37, 1000, 4096, 5003, 30'011}) {
    for (const int64_t step : {1, 2, 3, 20, 1000}) {
      cases.push_back({count, {1e-2f, 0.8f, 0.95f, 1e-8f, 0.1f, 0.25f, step}});
      cases.push_back({count, {.rate = 1e-3f, .decay = 0.01f, .step = step}});
      cases.push_back({count, {.rate = 0.02f, .decay = 1, .gradient_scale = 0.5f, .step = step}});
    }
  }
  return cases;
}

// The inputs of a case, and its results in float64. Before the first step the moments are zero.
struct AdamWProblem {
  explicit AdamWProblem(const AdamWCase& c)
      : c(c),
        gradient(Drawn(c.count, 1)),
        values(Drawn(c.count, 2)),
        first(c.settings.step == 1 ? std::vector<double>(c.count) : Drawn(c.count, 3, 0.1)),
        second(c.count) {
    Random random(4);
    for (double& x : second) x = c.settings.step == 1 ? 0 : Nearest(0.1 * random.Uniform(), DType::kFloat32);
  }

  struct Results {
    std::vector<Exact> values, first, second;
  };
  Results Exactly() const {
    const double beta1 = c.settings.beta1, beta2 = c.settings.beta2, rate = c.settings.rate;
    const auto step = static_cast<double>(c.settings.step);
    Results r{std::vector<Exact>(c.count), std::vector<Exact>(c.count), std::vector<Exact>(c.count)};
    for (int64_t i = 0; i < c.count; ++i) {
      const double g = static_cast<double>(c.settings.gradient_scale) * gradient[i];
      Exact& m = r.first[i];
      m.Add(beta1 * first[i]);
      m.Add((1 - beta1) * g);
      r.second[i].Add(beta2 * second[i] + (1 - beta2) * g * g);
      const double factor =
          rate / (1 - std::pow(beta1, step)) /
          (std::sqrt(r.second[i].value / (1 - std::pow(beta2, step))) + static_cast<double>(c.settings.epsilon));
      r.values[i].value = values[i] * (1 - rate * static_cast<double>(c.settings.decay)) - factor * m.value;
      r.values[i].size = std::abs(values[i]) + 2 * factor * m.size;
    }
    return r;
  }

  AdamWCase c;
  std::vector<double> gradient, values, first, second;
};

// None, parts of the blocks of implementations, and several blocks.
constexpr int64_t kSquareCounts[] = {0, 1, 13, 4096, 4097, 5000, 20'000};

inline double SumOfSquaresExactly(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return sum;
}

}  // namespace shiftrt::test
