// SPDX-License-Identifier: Apache-2.0
// The mixture of experts of a block over the operations of a device: routing, products and their backward pass. The
// rows of an expert are gathered, so that each product reads one expert's matrices (kernels/experts.h).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/shared_expert_pass.h"
#include "engine/stage_pass.h"
#include "kernels/experts.h"

namespace shiftrt {

class MixturePass {
 public:
  // For a block without experts, it does nothing.
  MixturePass(const StagePass& pass, const TrainedStage& stage);
  bool any() const { return !block_.experts.empty(); }
  // Takes its memory from the arenas.
  void LayOut(const Arenas& arenas, int64_t tokens, bool keeps);

  // Forwards: chooses the experts of the rows of x (tokens, hidden), and computes their gated activations.
  void Gate(DeviceMatrix<const float> x, const LoraScratch& lora);
  // y (tokens, hidden) = the weighted sum of the experts' last products.
  void Finish(const LoraScratch& lora, DeviceMatrix<float> y);
  // Backwards, after Gate() of the same x, or where its activations were kept: dx = the gradient of x from that of y.
  // An empty dx is not computed.
  void Backward(DeviceMatrix<const float> x, DeviceMatrix<const float> dy, const LoraScratch& lora,
                DeviceMatrix<float> dx);
  // True if a tensor of an expert or of the router has a gradient.
  bool Trained() const;

 private:
  void Route(DeviceMatrix<const float> x);
  // Calls product(expert, rows of the slots) for each expert that has slots.
  template <typename Product>
  void ForEachExpert(const Product& product) const {
    for (size_t expert = 0; expert < block_.experts.size(); ++expert) {
      const int64_t first = routing_.offsets[expert], count = routing_.offsets[expert + 1] - first;
      if (count == 0) continue;
      product(expert, [&](const auto& matrix) { return matrix.Rows(first, count); });
    }
  }
  std::span<float> SlotsOf(size_t expert, std::span<float> of_slots) const {
    const int64_t first = routing_.offsets[expert];
    return of_slots.subspan(first, routing_.offsets[expert + 1] - first);
  }
  // Adds the gradient of a bias from that of its product, unless it is not wanted.
  void AddBiasGradient(DeviceMatrix<const float> dy, DeviceMatrix<float> db) {
    if (!db.empty()) ops_.BiasGradient(dy, db);
  }
  // The gradients of the experts' tensors; null if they have none.
  const ExpertGradients* GradientsOf(size_t expert) const;

  const StagePass pass_;
  const TrainedStage stage_;
  Ops& ops_;
  const BlockWeights& block_;
  const MixtureSpec& spec_;
  Operand router_, router_bias_;
  DeviceMatrix<float> drouter_, drouter_bias_;
  std::optional<SharedExpertPass> shared_;
  ExpertRouting routing_;
  // Forwards.
  DeviceMatrix<float> logits_;       // (tokens, experts)
  DeviceMatrix<float> rows_;         // (slots, hidden): the inputs of the slots, then their outputs
  DeviceMatrix<float> gates_, ups_;  // (slots, units)
  DeviceMatrix<float> activation_;   // (slots, units); in the place of the gates unless these are kept
  // Backwards. The gradient of up takes the place of the activation.
  DeviceMatrix<float> dgates_, inputs_;  // (slots, units), (slots, hidden)
};

}  // namespace shiftrt
