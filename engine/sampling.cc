// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/check.h"
#include "runtime/not_finite.h"

namespace shiftrt {

void FailOfNaN() { throw NotFinite("a logit is NaN"); }

int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  for (float logit : logits)
    if (std::isnan(logit)) FailOfNaN();
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options.temperature <= 0) return best;

  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) order.resize(options.top_k);

  std::vector<double> weight(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    weight[i] = std::exp((static_cast<double>(logits[order[i]]) - logits[best]) / options.temperature);
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  double nucleus = 0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || nucleus < options.top_p * total)) nucleus += weight[kept++];

  double draw = uniform * nucleus;
  for (size_t i = 0; i + 1 < kept; ++i)
    if ((draw -= weight[i]) < 0) return order[i];
  return order[kept - 1];
}

}  // namespace shiftrt
