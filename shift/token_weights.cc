#include "shift/token_weights.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "runtime/check.h"
#include "shift/parse.h"

namespace shiftrt {

namespace {

constexpr double kMassive = 1000;  // times the median

// Whether the largest of `magnitudes`, which are reordered, is massive.
bool Massive(std::vector<float>& magnitudes) {
  const float largest = *std::max_element(magnitudes.begin(), magnitudes.end());
  const auto middle = magnitudes.begin() + static_cast<int64_t>(magnitudes.size()) / 2;
  std::nth_element(magnitudes.begin(), middle, magnitudes.end());
  return largest > kMassive * *middle;
}

}  // namespace

std::vector<double> TokenWeighting::Weights(MatrixView<const float> h, MatrixView<const float> delta,
                                            std::span<const int64_t> offsets) const {
  if (uniform()) return {};
  std::vector<double> weights(h.rows, 1.0);
  std::vector<float> before(h.cols), after(h.cols);
  for (int64_t t = 0; t < h.rows; ++t) {
    double squares = 0;
    for (int64_t j = 0; j < h.cols; ++j) {
      const double out = static_cast<double>(h(t, j)) + delta(t, j);
      squares += out * out;
      before[j] = std::abs(h(t, j));
      after[j] = static_cast<float>(std::abs(out));
    }
    // A token that leaves nothing has no size to be relative to, and nothing to fit.
    if (norm) weights[t] = squares > 0 ? static_cast<double>(h.cols) / squares : 0.0;
    if (massive != 1 && (Massive(before) || Massive(after))) weights[t] *= massive;
  }
  for (int64_t begin : offsets)
    if (begin < h.rows) weights[begin] *= first;
  return weights;
}

TokenWeighting ParseTokenWeighting(const std::string& text) {
  constexpr std::string_view kFirst = "first:", kMassive = "massive:";
  TokenWeighting weighting;
  if (text == "none") return weighting;
  std::string_view rest = text;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const bool first = part.starts_with(kFirst), massive = part.starts_with(kMassive);
    double& weight = first ? weighting.first : weighting.massive;
    const bool good = (first || massive) &&
                      ParseNumber(part.substr(first ? kFirst.size() : kMassive.size()), &weight) &&
                      std::isfinite(weight) && weight >= 0;
    if (part == "norm") {
      weighting.norm = true;
    } else if (!good) {
      FailUsage("--token-weight {}: \"{}\" is none of none, norm, first:W and massive:W with a weight of at least 0",
                text, part);
    }
    if (part.size() == rest.size()) return weighting;
    rest.remove_prefix(part.size() + 1);
  }
}

std::string Format(const TokenWeighting& weighting) {
  if (weighting.uniform()) return "none";
  std::string text = weighting.norm ? "norm" : "";
  const auto append = [&](const char* name, double weight) {
    if (weight != 1) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", name, weight);
  };
  append("first", weighting.first);
  append("massive", weighting.massive);
  return text;
}

}  // namespace shiftrt
