// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/expert_gradients.h"

#include <algorithm>

#include "engine/cuda/expert_slots.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"

namespace shiftrt {

// `probabilities` stay empty: RouteGradient() computes them again from the logits.
ExpertRouting ExpertGradientOps::Route(MatrixView<const float> logits, int64_t active, bool normalised) {
  const int64_t slots = logits.rows * active;
  int32_t* const there = numbers_.Reserve(call_.stream(), std::max<int64_t>(1, slots), kActivations);
  float* const weights = floats_.Reserve(call_.stream(), std::max<int64_t>(1, slots), kActivations);
  gpu::ChooseExperts(call_.stream(), logits, active, normalised, there, weights);
  std::vector<int32_t> chosen(slots);
  std::vector<float> of_tokens(slots);
  gpu::CopyToHost(call_.stream(), chosen.data(), there, slots * static_cast<int64_t>(sizeof(int32_t)));
  gpu::CopyToHost(call_.stream(), of_tokens.data(), weights, slots * static_cast<int64_t>(sizeof(float)));
  const ExpertSlots order = SlotsOf(chosen, logits.cols, active);
  ExpertRouting routing{logits.rows, logits.cols, active};
  routing.offsets = order.offsets;
  routing.token_of.assign(order.token_of.begin(), order.token_of.end());
  routing.slots_of.assign(order.slots_of.begin(), order.slots_of.end());
  routing.weights.resize(slots);
  for (int64_t i = 0; i < slots; ++i) routing.weights[routing.slots_of[i]] = of_tokens[i];
  return routing;
}

void ExpertGradientOps::Sum(const ExpertRouting& routing, bool weighted, MatrixView<const float> x,
                            MatrixView<float> y) {
  Check(x.stride == x.cols && x.rows == routing.slots(), "a sum over experts of ({}, {}) rows {} apart for {} slots",
        x.rows, x.cols, x.stride, routing.slots());
  std::vector<float> of_tokens;
  for (const int64_t slot : routing.slots_of) of_tokens.push_back(weighted ? routing.weights[slot] : 1.0f);
  const std::vector<int32_t> slots(routing.slots_of.begin(), routing.slots_of.end());
  gpu::SumExperts(call_.stream(),
                  {.rows = x.data,
                   .slots = Upload(slots, numbers_),
                   .weights = Upload(of_tokens, floats_),
                   .active = routing.active},
                  /*accumulate=*/false, y);
}

void ExpertGradientOps::WeightGradient(const ExpertRouting& routing, MatrixView<const float> activation,
                                       MatrixView<float> g, std::span<float> dweights) {
  std::vector<float> weights = routing.weights;
  weights.resize(2 * weights.size());  // room for the gradients behind them
  const float* const there = Upload(weights, floats_);
  gpu::ScaleEachRowGradient(call_.stream(), {there}, activation, g, floats_.data() + routing.slots());
  gpu::CopyToHost(call_.stream(), weights.data(), there + routing.slots(),
                  routing.slots() * static_cast<int64_t>(sizeof(float)));
  for (size_t slot = 0; slot < dweights.size(); ++slot) dweights[slot] += weights[slot];
}

void ExpertGradientOps::RouteGradient(const ExpertRouting& routing, bool normalised, std::span<const float> dweights,
                                      MatrixView<float> logits) {
  std::vector<int32_t> of_slots(routing.slots()), chosen;
  std::vector<float> of_tokens;
  for (int64_t expert = 0; expert < routing.experts; ++expert)
    std::fill(of_slots.begin() + routing.offsets[expert], of_slots.begin() + routing.offsets[expert + 1],
              static_cast<int32_t>(expert));
  for (const int64_t slot : routing.slots_of) {
    chosen.push_back(of_slots[slot]);
    of_tokens.push_back(dweights[slot]);
  }
  gpu::ChooseExpertsGradient(call_.stream(), Upload(chosen, numbers_), Upload(of_tokens, floats_), routing.active,
                             normalised, logits);
}

}  // namespace shiftrt
