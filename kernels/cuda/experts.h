// SPDX-License-Identifier: Apache-2.0
// The operations of a mixture of experts besides its products (kernels/experts.h), with the choice of the experts in
// device memory. A slot is a pair of a token and one of its experts.
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/activation.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

inline constexpr int64_t kMostExperts = 1024, kMostActiveExperts = 32;

// The experts of each token, which ascend, and the weights of its slots, as kernels/experts.h defines them; among equal
// probabilities the experts with the lowest numbers. A NaN counts as the largest. experts and weights (tokens, active).
// Cost: reads the logits once; one launch.
void ChooseExperts(Stream stream, MatrixView<const float> logits, int64_t active, bool normalised, int32_t* experts,
                   float* weights);

// The terms of the sum over the experts of each token.
struct ExpertSum {
  const float* rows = nullptr;     // (slots, n): the outputs of the experts
  const int32_t* slots = nullptr;  // (tokens, active): the slots of each token; null: one token after the other
  const float* weights = nullptr;  // (tokens, active)
  int64_t active = 0;
  const float* shared = nullptr;       // (tokens, n): the output of the shared expert; null: there is none
  const float* shared_gate = nullptr;  // (tokens): its weight is the sigmoid of this
  // (experts, n): added to the outputs of each expert; null: there are none. Then the experts of each token, (tokens,
  // active), tell which.
  const float* bias = nullptr;
  const int32_t* experts = nullptr;
};
// to (tokens, n) (+)= the weighted sum, in the order of `slots`. Cost: reads the rows once; one launch.
void SumExperts(Stream stream, const ExpertSum& sum, bool accumulate, MatrixView<float> to);

// The clamped unit (runtime/activation.h) of the slots' gates and ups: `gate_up` (slots, 2 units) has both side by
// side, to which the row bias[experts[slot]] (2 units) is added; bias may be null. to (slots, units), dense like
// gate_up and of its type. Cost: reads and writes both once; one launch.
void ActivateExperts(Stream stream, const ClampedSwiGlu& unit, ConstDeviceArray gate_up, const float* bias,
                     const int32_t* experts, int64_t slots, int64_t units, DeviceArray to);

// From the gradients of the weights, dweights (tokens, active), that of the logits, in their place (kernels/experts.h).
// experts (tokens, active): those that were chosen. Cost: reads and writes the logits; one launch.
void ChooseExpertsGradient(Stream stream, const int32_t* experts, const float* dweights, int64_t active,
                           bool normalised, MatrixView<float> logits);

}  // namespace shiftrt::gpu
