// SPDX-License-Identifier: Apache-2.0
// The parameters of a plan that are trained.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "models/block_tensors.h"

namespace shiftrt {

// A parameter in float32, in the memory of the device that trains it, and where its gradient is added. Without a value
// the stored tensor is used, and without a gradient none is computed.
struct Parameter {
  DeviceMatrix<const float> value;
  DeviceMatrix<float> gradient;
};

// A low-rank change of a projection (Hu et al. 2021): y = x W' + scale (drop(x) a') b'.
struct LoraParameters {
  Parameter a;  // (rank, input)
  Parameter b;  // (output, rank)
  bool empty() const { return a.value.empty(); }
};

// The gradients of the tensors of an expert, which are used as stored: (units, hidden) twice, and (hidden, units), and
// those of the biases, (1, n). An empty one of a bias is not computed.
struct ExpertGradients {
  DeviceMatrix<float> gate, up, down;
  DeviceMatrix<float> gate_bias, up_bias, down_bias;

  // The member for a tensor of an expert.
  static DeviceMatrix<float> ExpertGradients::*Of(const BlockTensor& row) {
    using E = ExpertWeights;
    using G = ExpertGradients;
    constexpr std::pair<TensorView E::*, DeviceMatrix<float> G::*> kMembers[] = {
        {&E::gate, &G::gate},           {&E::up, &G::up},           {&E::down, &G::down},
        {&E::gate_bias, &G::gate_bias}, {&E::up_bias, &G::up_bias}, {&E::down_bias, &G::down_bias}};
    return std::ranges::find(kMembers, row.of_expert, &std::pair<TensorView E::*, DeviceMatrix<float> G::*>::first)
        ->second;
  }
};

// The parameters of one stage.
struct StageParameters {
  // A block's, by the row of BlockTensors(); either is empty or has an entry per row. A vector is (1, n).
  std::vector<Parameter> tensors;
  std::vector<LoraParameters> loras;
  std::vector<ExpertGradients> experts;  // a mixture's: empty, or an entry per expert
  Parameter a, p, q, b;                  // an adapter's, as in Lra

  bool AnyGradient() const;
};

struct LoraSettings {
  float scale = 1;    // alpha / rank
  float dropout = 0;  // the probability that an element of x is dropped; others are divided by 1 - dropout
  uint64_t seed = 0;  // seed, step, stage, projection and place alone decide which are dropped
  uint64_t step = 0;
};

struct TrainedParameters {
  std::vector<StageParameters> stages;          // one per stage of the plan, or empty
  Parameter final_norm, final_norm_bias, head;  // (1, hidden) twice, (vocab, hidden)
  LoraSettings lora;

  // The lowest of `stage_count` stages that has a gradient; stage_count where only the head or the last norm has one,
  // or nothing.
  size_t LowestStage(size_t stage_count) const;
};

// Throws Error for parameters of stage `index` of a plan that do not fit it.
void CheckParameters(const Weights& weights, size_t index, const Stage& stage, const StageParameters& given);

}  // namespace shiftrt
