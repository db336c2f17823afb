#include "runtime/random.h"
#include "shift/criteria/criteria.h"

namespace shiftrt::criteria {

std::vector<double> Reverse(const CriterionInput& input, Progress&) {
  std::vector<double> scores(input.weights->config.layers);
  for (size_t l = 0; l < scores.size(); ++l) scores[l] = static_cast<double>(scores.size() - 1 - l);
  return scores;
}

std::vector<double> ReverseStar(const CriterionInput& input, Progress& progress) {
  std::vector<double> scores = Reverse(input, progress);
  scores.back() = static_cast<double>(scores.size());
  return scores;
}

std::vector<double> RandomOrder(const CriterionInput& input, Progress&) {
  Random random(input.seed);
  std::vector<double> scores(input.weights->config.layers);
  for (double& score : scores) score = random.Uniform();
  return scores;
}

}  // namespace shiftrt::criteria
