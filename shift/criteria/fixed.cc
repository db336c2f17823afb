// SPDX-License-Identifier: Apache-2.0
// Criteria that look at nothing but the unit's number.
#include "runtime/random.h"
#include "shift/criteria/criteria.h"

namespace shiftrt {

std::vector<double> ReverseScores(const CriterionTask& task) {
  const int64_t units = task.quota.units();
  std::vector<double> scores(units);
  for (int64_t unit = 0; unit < units; ++unit) scores[unit] = static_cast<double>(units - 1 - unit);
  return scores;
}

// Deepest first, but the final block last of all (the paper's main variant).
std::vector<double> ReverseKeepLastScores(const CriterionTask& task) {
  std::vector<double> scores = ReverseScores(task);
  const size_t kept = task.quota.unit() == Unit::kHalf ? 2 : 1;
  for (size_t i = 0; i < kept; ++i) scores[scores.size() - 1 - i] += static_cast<double>(scores.size());
  return scores;
}

std::vector<double> RandomScores(const CriterionTask& task) {
  Random random(task.input.seed);
  std::vector<double> scores(task.quota.units());
  for (double& score : scores) score = random.Uniform();
  return scores;
}

}  // namespace shiftrt
