// Criteria that look at nothing but the layer's number.
#include "runtime/random.h"
#include "shift/criteria/scores.h"

namespace shiftrt {

std::vector<double> ReverseScores(const CriterionInput& input, Progress&) {
  const int64_t layers = input.weights->config.layers;
  std::vector<double> scores(layers);
  for (int64_t layer = 0; layer < layers; ++layer) scores[layer] = static_cast<double>(layers - 1 - layer);
  return scores;
}

// Deepest first, but the final block last of all (the paper's main variant).
std::vector<double> ReverseKeepLastScores(const CriterionInput& input, Progress& progress) {
  std::vector<double> scores = ReverseScores(input, progress);
  scores.back() = static_cast<double>(scores.size());
  return scores;
}

std::vector<double> RandomScores(const CriterionInput& input, Progress&) {
  Random random(input.seed);
  std::vector<double> scores(input.weights->config.layers);
  for (double& score : scores) score = random.Uniform();
  return scores;
}

}  // namespace shiftrt
