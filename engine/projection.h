// SPDX-License-Identifier: Apache-2.0
// A projection with its trained parameters: y = x W' + bias + scale (drop(x) a') b', and its gradients.
#pragma once

#include "engine/stage_pass.h"

namespace shiftrt {

// Scratch memory of the projections of a block that have a LoRA; empty where none does.
struct LoraScratch {
  DeviceMatrix<float> inner, dinner;  // (tokens, rank), of the largest rank
  DeviceMatrix<float> dropped;        // (tokens, input), of the widest input; empty without dropout

  static LoraScratch Of(Arena& arena, const StagePass& pass, const TrainedStage& stage, int64_t tokens);
};

class ProjectionPass {
 public:
  // A projection of a block stage. `w` and `bias` are rows of BlockTensors(); a model may lack the bias.
  ProjectionPass(const StagePass& pass, const TrainedStage& stage, TensorView BlockWeights::*w,
                 TensorView BlockWeights::*bias);

  bool Trained() const;     // true if anything has a gradient
  bool ReadsInput() const;  // true if a gradient is computed from x, not from dy alone
  void Forward(DeviceMatrix<const float> x, const LoraScratch& scratch, DeviceMatrix<float> y) const;
  // Adds to the gradients, and writes or adds that of x to dx unless it is empty. x is not read unless ReadsInput().
  void Backward(DeviceMatrix<const float> x, DeviceMatrix<const float> dy, const LoraScratch& scratch, bool accumulate,
                DeviceMatrix<float> dx) const;

 private:
  bool Drops() const { return pass_.dropout && dropout_.probability > 0; }
  DeviceMatrix<const float> LoraInput(DeviceMatrix<const float> x, const LoraScratch& scratch) const;

  StagePass pass_;
  Operand w_, bias_;
  DeviceMatrix<float> dw_, dbias_;
  LoraParameters lora_;
  Dropout dropout_;
};

// Row of BlockTensors() that `member` has.
size_t RowOf(TensorView BlockWeights::*member);
// A tensor of a block stage, trained or stored, and where its gradient goes.
Operand OperandOf(const StagePass& pass, const TrainedStage& stage, TensorView BlockWeights::*member);
DeviceMatrix<float> GradientOf(const TrainedStage& stage, TensorView BlockWeights::*member);

}  // namespace shiftrt
