// SPDX-License-Identifier: Apache-2.0
// Criteria that look at nothing but the layer's number.
#include "runtime/random.h"
#include "shift/criteria/criteria.h"

namespace shiftrt {

std::vector<double> ReverseScores(const CriterionTask& task) {
  const int64_t layers = task.input.weights->config.layers;
  std::vector<double> scores(layers);
  for (int64_t layer = 0; layer < layers; ++layer) scores[layer] = static_cast<double>(layers - 1 - layer);
  return scores;
}

// Deepest first, but the final block last of all (the paper's main variant).
std::vector<double> ReverseKeepLastScores(const CriterionTask& task) {
  std::vector<double> scores = ReverseScores(task);
  scores.back() = static_cast<double>(scores.size());
  return scores;
}

std::vector<double> RandomScores(const CriterionTask& task) {
  Random random(task.input.seed);
  std::vector<double> scores(task.input.weights->config.layers);
  for (double& score : scores) score = random.Uniform();
  return scores;
}

}  // namespace shiftrt
