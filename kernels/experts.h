// SPDX-License-Identifier: Apache-2.0
// The operations of a mixture of experts besides its products (models/block_spec.h, MixtureSpec). A pair of a token and
// one of its experts is a slot. The slots stand in the order of the experts, and within an expert in that of the
// tokens, so that the rows of an expert lie together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

struct ExpertRouting {
  int64_t tokens = 0, experts = 0, active = 0;
  std::vector<int64_t> offsets = {};      // (experts + 1): the slots of expert e are offsets[e] to offsets[e + 1] - 1
  std::vector<int64_t> token_of = {};     // (tokens * active): the token of each slot
  std::vector<int64_t> slots_of = {};     // (tokens, active): the slots of each token, which ascend
  std::vector<float> weights = {};        // (tokens * active): the weight of each slot
  std::vector<float> probabilities = {};  // (tokens, experts)

  int64_t slots() const { return tokens * active; }
};

// Chooses the `active` experts of each token: those with the largest of p = softmax(logits), in float32, for logits
// (tokens, experts). The weight of a slot is its p, or, with `normalised`, its p divided by the sum over the token's
// slots. Among equal probabilities it chooses as torch.topk does on a CPU: by the same calls of the standard library.
// Source: transformers, modeling_qwen3_moe.py, Qwen3MoeTopKRouter. Throws Error unless
// 1 <= active <= experts.
ExpertRouting RouteToExperts(const Context& context, MatrixView<const float> logits, int64_t active, bool normalised);

// y (tokens, n) = the sum over the slots of each token of its weight times its row of x (slots, n), in the order of the
// experts; without `weighted`, each weight is 1. y must not alias x.
void SumOverExperts(const Context& context, const ExpertRouting& routing, bool weighted, MatrixView<const float> x,
                    MatrixView<float> y);

// The gradient of the weights, from those of the slots' outputs. With a = activation (slots, n), and with g (slots, n)
// holding dy W, where dy is the gradient of the token's sum and y = a W' the output of a slot:
// <a_s, g_s> is added to dweights[s], and g_s becomes weights[s] g_s, the gradient of a_s.
void ExpertWeightGradient(const Context& context, const ExpertRouting& routing, MatrixView<const float> activation,
                          MatrixView<float> g, std::span<float> dweights);
// The part in it of a bias of the slots' outputs, for the slots of one expert: <b, dy_s> is added to dweights[s], with
// the bias b (n) and the rows of dy (slots of the expert, n).
void ExpertBiasWeightGradient(const Context& context, const TensorView& b, MatrixView<const float> dy,
                              std::span<float> dweights);
// Row s of x (slots, n) becomes weights[s] times it.
void ScaleByExpertWeights(const Context& context, const ExpertRouting& routing, MatrixView<float> x);

// dlogits (tokens, experts) from the gradient of the weights. The choice of the experts counts as constant.
void RouteToExpertsGradient(const Context& context, const ExpertRouting& routing, bool normalised,
                            std::span<const float> dweights, MatrixView<float> dlogits);

}  // namespace shiftrt
