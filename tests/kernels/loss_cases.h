// SPDX-License-Identifier: Apache-2.0
// The loss of a token over the vocabulary, cross_entropy * -log softmax(logits)[target] + divergence * KL(teacher ||
// logits), and its gradient, in float64.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct LossTerms {
  float cross_entropy = 1, divergence = 0;
  float soft_cap = 0, teacher_cap = 0;  // 0: none
};

struct TokenLoss {
  Exact loss;
  std::vector<Exact> gradient;  // with respect to the logits before their soft cap
};

inline std::vector<double> LogSoftmax(std::span<const double> logits, double cap) {
  std::vector<double> out(logits.begin(), logits.end());
  if (cap > 0)
    for (double& x : out) x = cap * std::tanh(x / cap);
  const double maximum = *std::max_element(out.begin(), out.end());
  double sum = 0;
  for (const double x : out) sum += std::exp(x - maximum);
  for (double& x : out) x = (x - maximum) - std::log(sum);  // in this order, so that huge logits lose nothing
  return out;
}

// `teacher` has the teacher's logits if the divergence is not 0. All logits are before their soft caps.
inline TokenLoss LossOf(const LossTerms& terms, std::span<const double> logits, std::span<const double> teacher,
                        int32_t target) {
  const double cross_entropy = terms.cross_entropy, divergence = terms.divergence, cap = terms.soft_cap;
  const std::vector<double> mine = LogSoftmax(logits, cap);
  const std::vector<double> theirs = divergence != 0 ? LogSoftmax(teacher, terms.teacher_cap) : std::vector<double>();
  TokenLoss of{{}, std::vector<Exact>(logits.size())};
  of.loss.Add(-cross_entropy * mine[target]);
  for (size_t j = 0; j < mine.size(); ++j) {
    const double p = std::exp(mine[j]), q = divergence != 0 ? std::exp(theirs[j]) : 0;
    const double hit = static_cast<int32_t>(j) == target ? 1 : 0, tanh = cap > 0 ? std::tanh(logits[j] / cap) : 0;
    if (q > 0) of.loss.Add(divergence * q * (theirs[j] - mine[j]));
    of.gradient[j] = {(cross_entropy * (p - hit) + divergence * (p - q)) * (1 - tanh * tanh), hit + p + q};
  }
  return of;
}

// The losses of three tokens with given logits, and their gradients times the scales.
struct LossCase {
  static constexpr int64_t kTokens = 3;

  LossCase(int64_t vocab, double size, const LossTerms& terms = {}, int64_t nan_at = -1)
      : vocab(vocab), size(size), terms(terms), nan_at(nan_at), logits(Drawn(kTokens * vocab, 7, size)) {
    if (taught()) teacher = Drawn(kTokens * vocab, 8, size);
    for (int64_t t = 0; nan_at >= 0 && t < kTokens; ++t) logits[t * vocab + nan_at] = kNan;
  }
  bool taught() const { return terms.divergence != 0; }
  // Expects the losses and the gradients (tokens, vocab) in their type. The loss of a logit that is not a number is
  // none. `least`: what a gradient may lose because small probabilities count as 0.
  void Expect(const std::vector<double>& losses, const std::vector<double>& gradients, DType type,
              double least = 0x1p-126) const {
    SCOPED_TRACE(fmt::format("vocabulary {}, size {}, cross-entropy {}, divergence {}, caps {} and {}, NaN at {}",
                             vocab, size, terms.cross_entropy, terms.divergence, terms.soft_cap, terms.teacher_cap,
                             nan_at));
    const double reach = 5 * size;  // the largest logit
    for (int64_t t = 0; t < kTokens; ++t) {
      if (nan_at >= 0) {
        EXPECT_TRUE(std::isnan(losses[t]));
        continue;
      }
      const auto row = [&](const std::vector<double>& all) { return std::span(all).subspan(t * vocab, vocab); };
      const TokenLoss exact = LossOf(terms, row(logits), taught() ? row(teacher) : std::span(teacher), targets[t]);
      EXPECT_CLOSE(losses[t], exact.loss.value, 4e-6 + kUnit * 32 * (exact.loss.size + reach), t);
      for (int64_t j = 0; j < vocab; ++j) {
        const double gradient = exact.gradient[j].value * scales[t];
        EXPECT_CLOSE(gradients[t * vocab + j], gradient,
                     1.01 * UnitOf(type) * std::abs(gradient) +
                         kUnit * (32 + 8 * reach) * std::abs(scales[t]) * exact.gradient[j].size + least,
                     t * vocab + j);
      }
    }
  }

  int64_t vocab;
  double size;  // standard deviation of the logits, and of the teacher's
  LossTerms terms;
  int64_t nan_at;                       // the token of the vocabulary whose logits are not numbers; -1: none
  std::vector<double> logits, teacher;  // (tokens, vocab) before the soft cap; no teacher: empty
  std::vector<int32_t> targets = {0, static_cast<int32_t>(vocab - 1), static_cast<int32_t>(vocab / 2)};
  std::vector<double> scales = {1, 0.25, -2};
};

// A GPU has one soft cap for both models.
inline std::vector<LossCase> LossCases() {
  std::vector<LossCase> cases = {{7, 4},
                                 {2049, 4},
                                 {2100, 4, {0.5f, 2, 6, 6}},
                                 {2100, 4, {0.5f, 2, 6, 9}},
                                 {4100, 4, {.soft_cap = 8}},
                                 {300, 4, {.cross_entropy = 0, .divergence = 1}}};
  for (const double size : {1.0, 30.0}) {
    cases.push_back({1500, size});
    cases.push_back({1500, size, {.soft_cap = 20}});
  }
  for (const double size : {1.0, 20.0}) {
    cases.push_back({1500, size, {.cross_entropy = 0, .divergence = 1}});
    cases.push_back({1500, size, {0.5f, 2, 30, 30}});
  }
  for (const int64_t at : {0, 250, 599}) cases.push_back({600, 1, {}, at});
  return cases;
}

}  // namespace shiftrt::test
