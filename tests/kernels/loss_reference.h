// SPDX-License-Identifier: Apache-2.0
// The loss of a token over the vocabulary, cross_entropy * -log softmax(logits)[target] + divergence * KL(teacher ||
// logits), and its gradient, in float64.
#pragma once

#include <cstdint>
#include <span>

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

}  // namespace shiftrt::test
