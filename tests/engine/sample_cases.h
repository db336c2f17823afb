// SPDX-License-Identifier: Apache-2.0
// The choice of a token from its logits, on the CPU and on a GPU.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "runtime/random.h"

namespace shiftrt::test {

struct SampleCase {
  struct Choice {
    SamplingOptions options;
    double uniform;
    int32_t token;  // the choice
  };

  std::string name;
  std::vector<float> logits;
  std::vector<Choice> choices;

  // Adds choices, whose tokens are those of the definition in engine/sampling.h: all tokens are put into order.
  void Add(const SamplingOptions& options, const std::vector<double>& draws) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    if (options.temperature == 0) order.resize(1);
    if (options.top_k > 0 && options.top_k < std::ssize(order)) order.resize(options.top_k);
    std::vector<double> weights;
    for (const int32_t token : order)
      weights.push_back(std::exp((static_cast<double>(logits[token]) - logits[order[0]]) / options.temperature));
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double nucleus = 0;
    size_t kept = 0;
    while (kept < order.size() && (kept == 0 || nucleus < options.top_p * total)) nucleus += weights[kept++];
    for (const double uniform : draws) {
      double draw = uniform * nucleus;
      size_t chosen = 0;
      while (chosen + 1 < kept && (draw -= weights[chosen]) >= 0) ++chosen;
      choices.push_back({options, uniform, order[chosen]});
    }
  }
  // Expects choose(logits, options, uniform) to be the token of each choice, or of one in `step`.
  template <typename Choose>
  void Expect(const Choose& choose, size_t step = 1) const {
    for (size_t i = 0; i < choices.size(); i += step) {
      const auto& [options, uniform, token] = choices[i];
      ASSERT_EQ(choose(logits, options, uniform), token)
          << name << ", temperature " << options.temperature << ", top-k " << options.top_k << ", top-p "
          << options.top_p << ", draw " << uniform;
    }
  }
};

// Random logits, those of a real vocabulary's size, many equal ones, equals alone, ties, and infinities.
inline std::vector<SampleCase> SampleCases() {
  constexpr float kInfinity = HUGE_VALF;
  constexpr double kLast = 1 - 0x1p-53;  // the largest draw
  std::vector<SampleCase> cases;
  const auto drawn = [&](int64_t vocab, uint64_t seed, double scale) -> SampleCase& {
    SampleCase& c = cases.emplace_back(SampleCase{fmt::format("{} tokens", vocab), std::vector<float>(vocab), {}});
    Random random(seed);
    for (float& logit : c.logits) logit = static_cast<float>(scale * random.Normal());
    return c;
  };
  Random random(11);
  for (const int64_t vocab : {1, 33, 1025, 2500}) {
    SampleCase& c = drawn(vocab, vocab, 3);
    for (const double temperature : {0.3, 40.0})
      for (const int64_t top_k : {0, 7, 1024})
        for (const double top_p : {0.0, 0.9, 1.0}) c.Add({temperature, top_p, top_k}, {random.Uniform()});
  }
  SampleCase& real = drawn(151'936, 3, 2.5);
  for (const SamplingOptions& options :
       {SamplingOptions{1, 1, 0}, {0.8, 0.95, 50}, {1, 0.9, 0}, {1, 1, 151'935}, {5, 1, 1}, {0, 1, 0}})
    real.Add(options, {random.Uniform()});
  SampleCase& quarters = drawn(3000, 5, 4);  // many are equal
  for (float& logit : quarters.logits) logit = std::floor(4 * logit) / 4;
  quarters.logits[17] = quarters.logits[1234] = -kInfinity;
  for (const double temperature : {0.01, 0.5, 1.0, 4.0, 100.0})
    for (const double top_p : {1.0, 0.95, 0.3, 0.0})
      for (const int64_t top_k : {0, 1, 40, 2999, 5000}) {
        std::vector<double> draws = {0, 0.5, 1 - 1e-6};
        for (int i = 0; i < 20; ++i) draws.push_back(random.Uniform());
        quarters.Add({temperature, top_p, top_k}, draws);
      }
  // With equal weights, the borders between tokens are exact.
  SampleCase& four = cases.emplace_back(SampleCase{"four equals", {0.0f, -0.0f, -0.0f, 0.0f}, {}});
  const std::vector<double> borders = {0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, kLast};
  for (const double uniform : borders)
    four.choices.push_back({{0.7, 1, 0}, uniform, static_cast<int32_t>(4 * uniform)});
  four.Add({0.7, 1, 3}, borders);
  for (const double top_p : {0.25, 0.5, 0.51}) four.Add({0.7, top_p, 0}, borders);
  SampleCase half{"1,500 equals", std::vector<float>(3000, 1), {}};
  for (int i = 0; i < 3000; i += 2) half.logits[i] = -2;
  half.choices = {
      {{1e-3, 1, 0}, 0, 1}, {{1e-3, 1, 0}, kLast, 2999}, {{1e-3, 1, 700}, kLast, 1399}, {{1e-3, 0.1, 0}, kLast, 299}};
  cases.push_back(half);
  SampleCase tie{"a tie", std::vector<float>(2500, -5), {{{}, 0, 70}}};
  for (const int at : {70, 301, 2499}) tie.logits[at] = 2;
  cases.push_back(tie);
  cases.push_back({"a tie", {1, 3, 3}, {{{}, 0, 1}}});
  cases.push_back({"zeros of both signs", {-1, -0.0f, 0, -0.0f}, {{{}, 0, 1}}});
  cases.push_back({"nothing", {-kInfinity, -kInfinity, -kInfinity}, {{{}, 0, 0}}});
  for (const std::vector<float>& logits :
       {std::vector<float>{0, kInfinity, kInfinity}, {-kInfinity, -kInfinity}, {-kInfinity, 1, -kInfinity, 1.5f}}) {
    SampleCase& c = cases.emplace_back(SampleCase{"infinities", logits, {}});
    for (const double temperature : {0.0, 1.0}) c.Add({temperature, 0.9, 3}, {0.0, 0.3, 0.99});
  }
  return cases;
}

// Logits of which one is not a number, and one is larger than all others.
inline std::vector<std::vector<float>> SamplesOfNaN() {
  std::vector<std::vector<float>> samples = {{1, NAN}};
  for (const int at : {0, 250, 599}) {
    std::vector<float>& logits = samples.emplace_back(600, 1.0f);
    logits[at] = NAN;
    logits[17] = HUGE_VALF;
  }
  return samples;
}

}  // namespace shiftrt::test
