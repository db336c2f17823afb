// SPDX-License-Identifier: Apache-2.0
// An adapter stage both ways, over the operations of a device: h + (h P) Q + b, or h + h A + b.
#pragma once

#include "engine/stage_pass.h"

namespace shiftrt {

class AdapterPass {
 public:
  AdapterPass(const StagePass& pass, const TrainedStage& stage);
  AdapterPass(const AdapterPass&) = delete;  // operands refer to its views
  AdapterPass& operator=(const AdapterPass&) = delete;
  // Takes its memory from the arenas, before anything else is called.
  void LayOut(const Arenas& arenas, int64_t tokens);

  void Forward(DeviceMatrix<float> h);
  void Backward(const StreamGradient& stream);

 private:
  // A matrix of the adapter, trained or stored.
  struct Matrix {
    TensorView stored;
    Operand operand;
    DeviceMatrix<float> gradient;
    bool Trained() const { return !gradient.empty(); }
  };
  static void Take(const Parameter& parameter, const shiftrt::Matrix<float>& stored, Matrix& matrix);

  Ops& ops_;
  const Lra& lra_;
  Matrix a_, p_, q_, b_;
  DeviceMatrix<float> inner_, dinner_;  // (tokens, rank); of a full adapter inner_ is (tokens, hidden)
};

}  // namespace shiftrt
