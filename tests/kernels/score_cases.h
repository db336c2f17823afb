// SPDX-License-Identifier: Apache-2.0
// The scores of tokens by their logits: the log-probability of a target, and the id of the largest logit.
#pragma once

#include <string>

#include "tests/kernels/loss_cases.h"

namespace shiftrt::test {

struct ScoreCase {
  std::string name;
  int64_t vocab;
  std::vector<double> logits;  // (tokens, vocab), numbers that float32 has
  std::vector<int32_t> targets;
  bool exact = false;  // the differences of the logits are numbers of float32, so that their size adds no error

  int64_t tokens() const { return std::ssize(targets); }
  std::span<const double> Row(int64_t token) const { return std::span(logits).subspan(token * vocab, vocab); }
  // Expects a result for one of the tokens. A logit that is not a number makes one that is none.
  void Expect(int64_t token, double log_prob, int32_t best) const {
    const std::span<const double> row = Row(token);
    const auto is_nan = [](double logit) { return std::isnan(logit); };
    if (std::any_of(row.begin(), row.end(), is_nan)) {
      EXPECT_TRUE(std::isnan(log_prob)) << name << ", token " << token;
      return;
    }
    const auto largest = std::max_element(row.begin(), row.end());
    const double expected = LogSoftmax(row, 0)[targets[token]];
    EXPECT_EQ(best, largest - row.begin()) << name << ", token " << token;
    EXPECT_CLOSE(log_prob, expected, 2e-6 + 4 * kUnit * (std::abs(expected) + (exact ? 0 : std::abs(*largest))), token)
        << name;
  }
};

// Logits of ordinary sizes, ties, of which the lowest id wins, magnitudes whose exponential overflows, and one that is
// not a number. The ids that matter stand at the ends, in the middle, and on both sides of the 2,048th logit.
inline std::vector<ScoreCase> ScoreCases() {
  std::vector<ScoreCase> cases;
  for (const double scale : {1.0, 30.0, 1000.0})
    cases.push_back({fmt::format("normal, scale {}", scale), 1500, Drawn(3 * 1500, 7, scale), {0, 1499, 700}});
  const auto one = [&](const std::string& name, int64_t vocab, double rest, const std::vector<int64_t>& at,
                       double value, int32_t target) {
    ScoreCase& c = cases.emplace_back(ScoreCase{name, vocab, std::vector<double>(vocab, rest), {target}, true});
    for (const int64_t id : at) c.logits[id] = value;
  };
  for (const std::vector<int64_t>& best :
       {std::vector<int64_t>{17, 18, 1999}, {70, 301, 599}, {2047, 2048}, {3, 2599}, {2598, 2599}})
    one(fmt::format("ties of {}", fmt::join(best, ", ")), 2600, -3, best, 6, 0);
  const double huge = static_cast<float>(1e30);
  one("a target far above the others", 2600, -huge, {2500}, huge, 2500);
  one("a target far below the largest", 2600, -huge, {2500}, huge, 0);
  one("equal huge logits and one far below them", 2600, huge, {2500}, -huge, 0);
  for (const int64_t at : {0, 5, 250, 2100, 2599}) one(fmt::format("NaN at {}", at), 2600, 0.5, {at}, kNan, 7);
  return cases;
}

}  // namespace shiftrt::test
